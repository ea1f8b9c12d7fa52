"""The rows behind the ids in an address. Somebody else's is as absent as one that never was."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.exceptions import NotFound

from ravi_django.models import Run, Session


def find_run(request: Any, id: UUID) -> Run:
    run: Run = _find(Run.objects.for_user(request.user), id, "run")
    return run


def find_session(request: Any, id: UUID) -> Session:
    session: Session = _find(Session.objects.for_user(request.user), id, "session")
    return session


def _find(rows: Any, id: UUID, noun: str) -> Any:
    row = rows.filter(id=id).first()
    if row is None:
        raise NotFound(f"there is no {noun} {id} of yours")
    return row
