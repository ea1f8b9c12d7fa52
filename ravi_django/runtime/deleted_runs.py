"""A run that is deleted takes along what is written for it at that moment.

Django deletes the rows below a run first and the run last. Who tells a run something has its row locked; the deleter
has too, from here on, before the first of those rows goes: what was written is seen, and nothing more is.
"""

from __future__ import annotations

from typing import Any

from django.db.models.signals import pre_delete

from ravi_django.models import Run
from ravi_django.runtime.store import touching


def connect() -> None:
    pre_delete.connect(_deleting, sender=Run, dispatch_uid="ravi.run_deleted")


def _deleting(sender: Any, instance: Run, **more: Any) -> None:
    touching.lock_to_delete(instance.id)
