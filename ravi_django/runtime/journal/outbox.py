"""The outbox of the event bus: events are rows of the transaction that they report, so none is lost and none reports
what was rolled back. Without RAVI["EVENT_BUS"] nothing is written.

A writer holds the run's lock while it takes numbers: the events of one run are in order. The audit log has its one
write here too; it is append-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import md5, sha256
from typing import Any
from uuid import UUID

from django.dispatch import Signal

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import Event, Message, event_types
from ravi_django.kernel.event_types import Whose
from ravi_django.models import AuditRecord, HumanRequest, OutboxEvent, Run, Status
from ravi_django.runtime.db import clock
from ravi_django.runtime.journal.entries import Entry, encode, storable

events_written = Signal()  # once they are committed: the bus's relay connects. Sent on any thread
TOPIC = "events"  # of all events of the runtime
REFUSED = "account"  # what the error of a model call that no budget had room for names
TOP_UP = "budget"  # the tool of a request for more budget
_ENDS = {f"run.{status.value}" for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.BLOCKED)}


def is_on() -> bool:
    return conf.EVENT_BUS is not None


# ------------------------------------------------------------------------------------------------ what is told


def of_submit(run: Run, message: Mapping[str, Any]) -> list[Event]:
    """Of a run that is being created: a root run is somebody's request."""
    if not is_on() or run.parent_id is not None:
        return []
    return [
        event_types.workflow_started(run.id, run.session_id, _text(message), **_whose(run, _id(run.id, "workflow")))
    ]


def of_entries(run: Run, entries: Iterable[Entry], output: Any = None) -> list[Event]:
    """Of journal rows that are being appended, and the `output` that the run is given with them."""
    if not is_on():
        return []
    return [event for entry in entries if (event := _of_entry(run, entry, output)) is not None]


def _of_entry(run: Run, entry: Entry, output: Any) -> Event | None:
    error = entry.error or {}
    if entry.kind in _ENDS:
        return _of_end(run, entry, output)
    if REFUSED in error and entry.kind == "llm.call":
        words = str(error.get("message", ""))
        return event_types.budget_exhausted(run.id, run.session_id, error[REFUSED], words, **_whose(run, entry.id.hex))
    if entry.kind == "run.retried" and "supersedes" in (entry.result or {}):  # not a transient error's, but a person's
        return event_types.run_retried(run.id, run.session_id, **_whose(run, entry.id.hex))
    if (entry.kind == "run.started" and run.generation == 0) or _begins_fork(run, entry):
        return event_types.run_started(run.id, run.session_id, **_whose(run, entry.id.hex))
    return None


def _begins_fork(run: Run, entry: Entry) -> bool:
    """Its beginning was copied: no row says it anew."""
    return entry.kind == "run.resumed" and run.forked_from is not None and run.next_seq == run.fork_seq + 2


def _of_end(run: Run, entry: Entry, output: Any) -> Event:
    error = entry.error or {}
    kind, words = str(error.get("type", "")), str(error.get("message", ""))
    whose = _whose(run, entry.id.hex)
    match entry.kind.removeprefix("run."):
        case Status.COMPLETED:
            return event_types.run_completed(run.id, run.session_id, str(output or ""), **whose)
        case Status.CANCELLED:
            return event_types.run_cancelled(run.id, run.session_id, words, **whose)
        case Status.BLOCKED:
            return event_types.run_blocked(run.id, run.session_id, kind, words, **whose)
        case _:
            return event_types.run_failed(run.id, run.session_id, kind, words, **whose)


def of_crash(run: Run, worker: str) -> Event:
    """Of a run that was just taken over from a dead worker."""
    whose = _whose(run, md5(f"{run.id}:crashed:{run.lease_epoch}".encode(), usedforsecurity=False).hexdigest())
    return event_types.agent_crashed(run.id, run.session_id, worker, run.crashes, **whose)


# The same in SQL, of the rows `run` as claimed and `before`; a test compares them.
CRASHED = f"""jsonb_build_object(
    'id', md5(run.id || ':crashed:' || run.lease_epoch), 'type', 'agent.crashed', 'source', '{event_types.SOURCE}',
    'schema_version', {event_types.SCHEMA_VERSIONS["agent.crashed"]}, 'correlation_id', run.id,
    'data', jsonb_build_object('run', run.id, 'thread', run.session_id, 'agent', run.agent, 'root', run.root_id,
      'parent', run.parent_id, 'owner', run.owner_id::text, 'tenant', run.tenant, 'worker', before.lease_owner,
      'crashes', run.crashes))"""


def of_request(request: HumanRequest, became: str, run: Run) -> list[Event]:
    """Of a request to people: opened, answered, expired or cancelled."""
    make = _REQUESTS.get(became)
    if not is_on() or make is None:
        return []
    whose = _whose(run, _id(request.id, became, request.version))
    whose["owner"], whose["tenant"] = _text_of(request.owner_id), request.tenant
    found = [make(request, run, whose)]
    if became == "opened" and request.tool == TOP_UP:
        more: Whose = {**whose, "event_id": _id(request.id, TOP_UP, request.version)}
        account = f"tree:{run.tree_id}"
        found.insert(0, event_types.budget_exhausted(run.id, run.session_id, account, request.text, **more))
    return found


def _opened(request: HumanRequest, run: Run, whose: Whose) -> Event:
    return event_types.hitl_requested(
        run.id,
        run.session_id,
        request.id,
        kind=str(request.kind),
        text=request.text,
        tool=request.tool,
        risk=request.risk,
        to=request.to,
        **whose,
    )


def _answered(request: HumanRequest, run: Run, whose: Whose) -> Event:
    answer = request.answer or {}
    action, by = str(answer.get("action", "")), str(answer.get("by", ""))
    about = (run.id, run.session_id, request.id)
    if request.kind != HumanRequest.Kind.APPROVAL:
        text = str(answer.get("text") or "")
        kind = str(request.kind)
        return event_types.hitl_answered(*about, kind=kind, action=action, by=by, tool=request.tool, text=text, **whose)
    if action in ("approve", "edit"):
        return event_types.hitl_approved(*about, action=action, tool=request.tool, by=by, **whose)
    reason = str(answer.get("reason") or "")
    return event_types.hitl_denied(*about, action=action, tool=request.tool, by=by, reason=reason, **whose)


def _closed(status: str) -> Callable[[HumanRequest, Run, Whose], Event]:
    def closed(request: HumanRequest, run: Run, whose: Whose) -> Event:
        kind = str(request.kind)
        return event_types.hitl_closed(
            run.id, run.session_id, request.id, kind=kind, status=status, tool=request.tool, **whose
        )

    return closed


_REQUESTS = {
    "opened": _opened,
    "answered": _answered,
    "expired": _closed("expired"),
    "cancelled": _closed("cancelled"),
}


def _whose(run: Run, event_id: str) -> Whose:
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
    """The same for the same change, however often it is written."""
    return sha256(":".join(map(str, (of, *what))).encode()).hexdigest()[:32]


def _text(message: Mapping[str, Any]) -> str:
    """What a message says, as text."""
    payload = Message.model_validate(message).payload
    said = getattr(payload, "message", None)
    if said is not None:
        return str(said.text)
    return encode(getattr(payload, "data", None) or {}).decode()


# ------------------------------------------------------------------------------------------------------ writing


def body(event: Event) -> dict[str, Any]:
    """As the row has it; the time is the row's own."""
    found: dict[str, Any] = storable(event.model_dump(mode="json", include=set(Event.model_fields) - {"ts"}))
    return found


def write(events: Sequence[Event], topic: str = TOPIC) -> None:
    """In the caller's transaction."""
    if not events:
        return
    rows = [OutboxEvent(topic=topic, body=body(event)) for event in events]
    if (present := clock.fixed()) is not None:
        for row in rows:
            row.created_at = present
    OutboxEvent.objects.bulk_create(rows)
    hint_on_commit()


def params(events: Sequence[Event]) -> list[str | None]:
    """Of `insert`, behind the present."""
    return [text for event in events for text in (TOPIC, encode(body(event)).decode())]


def insert(count: int, source: str) -> str:
    """A statement that writes `count` events when `source` has its row. Its parameters are a fake clock's present, or
    NULL, and `params`."""
    rows = ", ".join(f"({place}, %s::text, %s::jsonb)" for place in range(count))
    return f"""INSERT INTO ravi_outboxevent (topic, body, created_at)
  SELECT told.topic, told.body, coalesce(%s::timestamptz, statement_timestamp())
  FROM {source}, (VALUES {rows}) AS told(place, topic, body) ORDER BY told.place"""  # noqa: S608


def hint_on_commit() -> None:
    """Have it relayed once the caller's transaction, if there is one, has committed."""
    transaction.on_commit(hint, robust=True)


def hint() -> None:
    """There may be something to relay."""
    events_written.send(None)


def write_audit(*records: AuditRecord) -> None:
    """Once, whatever crashes: a record of the same key is there already, and stays as it is."""
    AuditRecord.objects.bulk_create([clock.stamp(record) for record in records], ignore_conflicts=True)
