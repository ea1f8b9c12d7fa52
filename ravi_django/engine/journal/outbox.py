"""The outbox of the event bus: events are written in the transaction that they report, so none is lost and none
reports a change that was rolled back. Without RAVI["EVENT_BUS"] nothing is written.

A writer holds the run's lock while it takes numbers: the events of one run are in order. The audit log is written here
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import md5, sha256
from typing import Any
from uuid import UUID

from ravi_django import wing
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.engine.journal.entries import Entry, encode
from ravi_django.kernel import Event, Message, event_types
from ravi_django.kernel.event_types import Origin
from ravi_django.kernel.json_values import storable
from ravi_django.models import AuditRecord, HumanRequest, OutboxEvent, Run, Status

TOPIC = "events"  # of all events of the runtime
REFUSED = "account"  # key in the error of a model call that exceeds a budget: the budget's account
TOP_UP = "budget"  # the `tool` of a request for more budget
_ENDS = {f"run.{status.value}" for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.BLOCKED)}


def is_on() -> bool:
    return conf.EVENT_BUS is not None and wing.find("calls", "the outbox's hint") is not None


# --------------------------------------------------------------------------------------------------- the events


def of_submit(run: Run, message: Mapping[str, Any]) -> list[Event]:
    """Events of a run that is being created: a root run starts a workflow."""
    if not is_on() or run.parent_id is not None:
        return []
    about = _about(run, _id(run.id, "workflow"))
    return [event_types.workflow_started(run.id, run.session_id, _text(message), **about)]


def of_entries(run: Run, entries: Iterable[Entry], output: Any = None) -> list[Event]:
    """Events of journal rows that are being appended. `output`: the run's, if they complete it."""
    if not is_on():
        return []
    return [event for entry in entries if (event := _of_entry(run, entry, output)) is not None]


def _of_entry(run: Run, entry: Entry, output: Any) -> Event | None:
    error, about = entry.error or {}, _about(run, _id(run.id, entry.seq))
    if entry.kind in _ENDS:
        return _of_end(run, entry, output, about)
    if REFUSED in error and entry.kind == "llm.call":
        detail = str(error.get("message", ""))
        return event_types.budget_exhausted(run.id, run.session_id, error[REFUSED], detail, **about)
    if entry.kind == "run.retried" and "supersedes" in (entry.result or {}):  # by a person, not for a transient error
        return event_types.run_retried(run.id, run.session_id, **about)
    if (entry.kind == "run.started" and run.generation == 0) or _begins_fork(run, entry):
        return event_types.run_started(run.id, run.session_id, **about)
    return None


def _begins_fork(run: Run, entry: Entry) -> bool:
    """Whether this row is the first one after those copied: it has no `run.started` row of its own."""
    return entry.kind == "run.resumed" and 0 < run.fork_seq == run.next_seq - 2


def _of_end(run: Run, entry: Entry, output: Any, about: Origin) -> Event:
    error = entry.error or {}
    kind, detail = str(error.get("type", "")), str(error.get("message", ""))
    match entry.kind.removeprefix("run."):
        case Status.COMPLETED:
            return event_types.run_completed(run.id, run.session_id, str(output or ""), **about)
        case Status.CANCELLED:
            return event_types.run_cancelled(run.id, run.session_id, detail, **about)
        case Status.BLOCKED:
            return event_types.run_blocked(run.id, run.session_id, kind, detail, **about)
        case _:
            return event_types.run_failed(run.id, run.session_id, kind, detail, **about)


def of_crash(run: Run, worker: str) -> Event:
    """The event of a run that was claimed from a dead worker."""
    about = _about(run, md5(f"{run.id}:crashed:{run.lease_epoch}".encode(), usedforsecurity=False).hexdigest())
    return event_types.agent_crashed(run.id, run.session_id, worker, run.crashes, **about)


# The same in SQL, from the rows `run` as claimed and `before`; a test compares them.
CRASHED = f"""jsonb_build_object(
    'id', md5(run.id || ':crashed:' || run.lease_epoch), 'type', 'agent.crashed', 'source', '{event_types.SOURCE}',
    'schema_version', {event_types.SCHEMA_VERSIONS["agent.crashed"]}, 'correlation_id', run.id,
    'data', jsonb_build_object('run', run.id, 'thread', run.session_id, 'agent', run.agent, 'root', run.root_id,
      'parent', run.parent_id, 'owner', run.owner_id::text, 'tenant', run.tenant, 'worker', before.lease_owner,
      'crashes', run.crashes))"""


def of_request(request: HumanRequest, became: str, run: Run) -> list[Event]:
    """Events of a request to people that was opened, answered, expired or cancelled."""
    if not is_on() or became not in ("opened", "answered", "expired", "cancelled"):
        return []
    about = _about(run, _id(request.id, became, request.version))
    about["owner"], about["tenant"] = _text_of(request.owner_id), request.tenant
    if became == "answered":
        return [_answered(request, run, about)]
    ids, kind = (run.id, run.session_id, request.id), str(request.kind)
    if became != "opened":
        return [event_types.hitl_closed(*ids, kind=kind, status=became, tool=request.tool, **about)]
    about_request = {"text": request.text, "tool": request.tool, "risk": request.risk, "to": request.to}
    events = [event_types.hitl_requested(*ids, kind=kind, **about_request, **about)]
    if request.tool == TOP_UP:
        about["event_id"] = _id(request.id, TOP_UP, request.version)
        account = f"tree:{run.tree_id}"
        events.insert(0, event_types.budget_exhausted(run.id, run.session_id, account, request.text, **about))
    return events


def _answered(request: HumanRequest, run: Run, about: Origin) -> Event:
    answer = request.answer or {}
    ids = (run.id, run.session_id, request.id)
    decision = {"action": str(answer.get("action", "")), "by": str(answer.get("by", "")), "tool": request.tool}
    if request.kind != HumanRequest.Kind.APPROVAL:
        text = str(answer.get("text") or "")
        return event_types.hitl_answered(*ids, kind=str(request.kind), text=text, **decision, **about)
    if decision["action"] in ("approve", "edit"):
        return event_types.hitl_approved(*ids, **decision, **about)
    return event_types.hitl_denied(*ids, reason=str(answer.get("reason") or ""), **decision, **about)


def _about(run: Run, event_id: str) -> Origin:
    return {
        "agent": run.agent,
        "root": _text_of(run.root_id),
        "parent": _text_of(run.parent_id),
        "owner": _text_of(run.owner_id),
        "tenant": run.tenant,
        "event_id": event_id,
    }


def _text_of(key: Any) -> str | None:
    return None if key is None else str(key)


def _id(of: UUID, *what: object) -> str:
    """An event's id: the same each time that the same change is written."""
    return sha256(":".join(map(str, (of, *what))).encode()).hexdigest()[:32]


def _text(body: Mapping[str, Any]) -> str:
    payload = Message.model_validate(body).payload
    message = getattr(payload, "message", None)
    if message is not None:
        return str(message.text)
    return encode(getattr(payload, "data", None) or {}).decode()


# ------------------------------------------------------------------------------------------------------ writing


def body(event: Event) -> dict[str, Any]:
    """The event as its row stores it, without the time, which is a column."""
    stored: dict[str, Any] = storable(event.model_dump(mode="json", include=set(Event.model_fields) - {"ts"}))
    return stored


def write(events: Sequence[Event], topic: str = TOPIC) -> None:
    """In the caller's transaction."""
    if not events:
        return
    OutboxEvent.objects.bulk_create(clock.stamp(OutboxEvent(topic=topic, body=body(event))) for event in events)
    hint_on_commit()


def params(events: Sequence[Event]) -> list[str | None]:
    """The parameters of `insert`, after the present."""
    return [text for event in events for text in (TOPIC, encode(body(event)).decode())]


def insert(count: int, source: str) -> str:
    """SQL that writes `count` events if `source` has a row. Its parameters: the fake clock's present or NULL, then
    `params`."""
    rows = ", ".join(f"({number}, %s::text, %s::jsonb)" for number in range(count))
    return f"""INSERT INTO ravi_outboxevent (topic, body, created_at)
  SELECT events.topic, events.body, coalesce(%s::timestamptz, statement_timestamp())
  FROM {source}, (VALUES {rows}) AS events(place, topic, body) ORDER BY events.place"""  # noqa: S608


def hint_on_commit() -> None:
    """Call `hint` after the commit of the caller's transaction, or at once without one."""
    transaction.on_commit(hint, robust=True)


def hint() -> None:
    """Notify the relay that events may wait."""
    wing.call("the outbox's hint")()


def write_audit(*records: AuditRecord) -> None:
    """Write records. One whose key is stored already is skipped, so a repeat after a crash writes nothing twice."""
    AuditRecord.objects.bulk_create([clock.stamp(record) for record in records], ignore_conflicts=True)
