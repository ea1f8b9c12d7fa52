"""What outlives a request: the audit log's rows, Django's own log, and who is told. In the transaction of
what they tell of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.apps import apps
from django.dispatch import Signal as DjangoSignal

from ravi_django.db import transaction
from ravi_django.models import AuditRecord, HumanRequest, Run
from ravi_django.runtime.journal import outbox
from ravi_django.runtime.journal.outbox import write_audit


def record(request: HumanRequest, event: str, run: Run, detail: dict[str, Any] | None = None) -> None:
    """One thing that became of a request: opened, answered, expired, escalated, reassigned, cancelled."""
    write_audit(_row(request, event, run, detail))
    outbox.write(outbox.of_request(request, event, run))


def record_all(
    requests: Sequence[HumanRequest], event: str, run: Run, detail_of: Callable[[HumanRequest], dict[str, Any]]
) -> None:
    """The same of several requests of a run, in one statement."""
    if requests:
        write_audit(*(_row(request, event, run, detail_of(request)) for request in requests))
        outbox.write([told for request in requests for told in outbox.of_request(request, event, run)])


def what_is_asked(request: HumanRequest) -> dict[str, Any]:
    """The detail of an opening."""
    return {"text": request.text, "arguments": request.arguments}


def _row(request: HumanRequest, event: str, run: Run, detail: dict[str, Any] | None) -> AuditRecord:
    """Each change of a request has a version of its own: that, and what it was, make the record's key."""
    told = {
        "request": str(request.id),
        "version": request.version,
        "kind": str(request.kind),
        "tool": request.tool,
        "risk": request.risk,
        "to": request.to,
        "arguments_hash": request.arguments_hash,
        **(detail or {}),
    }
    return AuditRecord(
        key=hashlib.sha256(f"request:{request.id}:{event}:{request.version}".encode()).hexdigest(),
        event="request",
        name=event,
        owner_id=request.owner_id,
        tenant=request.tenant,
        agent=run.agent,
        run_id=run.id,
        session_id=run.session_id,
        detail=told,
    )


def log_entry(request: HumanRequest, user: Any, words: str) -> None:
    """Django's own record of who changed what, as the admin shows it; nothing where the site has no admin."""
    if user is None or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    LogEntry.objects.create(
        user_id=user.pk,
        content_type_id=ContentType.objects.get_for_model(HumanRequest).pk,
        object_id=str(request.pk),
        object_repr=str(request)[:200],
        action_flag=CHANGE,
        change_message=words,
    )


def tell(signal: DjangoSignal, request: HumanRequest, **more: Any) -> None:
    """Once this transaction has committed."""
    send = partial(signal.send_robust, sender=HumanRequest, request=request, **more)
    transaction.on_commit(lambda: _ignore(send()), robust=True)


def _ignore(results: Any) -> None:
    """What a receiver raised is logged by Django."""
