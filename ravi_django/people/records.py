"""The records of requests: rows of the audit log, events, Django's own log and Django's signals. Each is written in the
transaction of the change that it records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.dispatch import Signal as DjangoSignal

from ravi_django.db import transaction
from ravi_django.engine.journal import outbox
from ravi_django.engine.journal.outbox import write_audit
from ravi_django.models import AuditRecord, Feedback, HumanRequest, Run


def record(request: HumanRequest, event: str, run: Run, detail: dict[str, Any] | None = None) -> None:
    """Record an event of a request: opened, answered, expired, escalated, reassigned or cancelled."""
    record_all([request], event, run, detail)


def record_all(requests: Sequence[HumanRequest], event: str, run: Run, detail: dict[str, Any] | None = None) -> None:
    """The same for several requests of a run, in one statement."""
    if requests:
        write_audit(*(_row(request, event, run, detail or {}) for request in requests))
        outbox.write([message for request in requests for message in outbox.of_request(request, event, run)])


def _row(request: HumanRequest, event: str, run: Run, detail: dict[str, Any]) -> AuditRecord:
    """The event and the version of the request make the key: each change has its own version."""
    asked = {"arguments": request.arguments} if event in ("opened", "answered") else {}
    asked |= {"text": request.text} if event == "opened" else {}
    known = {
        "request": str(request.id),
        "version": request.version,
        "kind": str(request.kind),
        "tool": request.tool,
        "risk": request.risk,
        "to": request.to,
        "arguments_hash": request.arguments_hash,
        **asked,
        **detail,
    }
    key = f"request:{request.id}:{event}:{request.version}"
    return _audit(key, request, run, event="request", name=event, detail=known)


def record_late(run: Run, call: dict[str, Any], tool: str, answer: dict[str, Any]) -> None:
    """Record the late result of a tool's call whose run has ended."""
    key = ":".join(["late", str(run.id), *map(str, call.values())])
    detail = {**call, "outcome": "late", "answer": answer}
    write_audit(_audit(key, run, run, event="tool", name=tool, detail=detail))


def _audit(key: str, owned: HumanRequest | Run, run: Run, **more: Any) -> AuditRecord:
    return AuditRecord(
        key=hashlib.sha256(key.encode()).hexdigest(),
        owner_id=owned.owner_id,
        tenant=owned.tenant,
        agent=run.agent,
        run_id=run.id,
        session_id=run.session_id,
        **more,
    )


def log_entry(row: HumanRequest | Run, user: Any, message: str) -> None:
    """Write to Django's own log, which the admin shows as the row's history. A site without the admin has none."""
    if user is None or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    LogEntry.objects.create(
        user_id=user.pk,
        content_type_id=ContentType.objects.get_for_model(row).pk,
        object_id=str(row.pk),
        object_repr=str(row)[:200],
        action_flag=CHANGE,
        change_message=message,
    )


def notify(signal: DjangoSignal, request: HumanRequest, **more: Any) -> None:
    """Send it after this transaction's commit. Django logs the exceptions of receivers."""
    transaction.on_commit(lambda: signal.send_robust(HumanRequest, request=request, **more), robust=True)


def rate(run: Run, user: Any, score: int, text: str) -> None:
    """Keep what a user thinks of a run. A later opinion replaces the one before."""
    Feedback.objects.update_or_create(run=run, user=user, defaults={"score": score, "text": text})
