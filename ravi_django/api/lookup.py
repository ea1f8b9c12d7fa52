"""The rows behind the ids in an address. Somebody else's is as absent as one that never was."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.exceptions import NotFound

from ravi_django.models import Run, Session


def find_run(request: Any, id: UUID) -> Run:
    return _find(Run.objects.for_user(request.user), id, "run")


def find_session(request: Any, id: UUID) -> Session:
    return _find(Session.objects.for_user(request.user), id, "session")


def _find(rows: Any, id: UUID, noun: str) -> Any:
    row = rows.filter(id=id).first()
    if row is None:
        raise NotFound(f"there is no {noun} {id} of yours")
    return row
