"""Deliver a source's items to its agent: each once, as a signal to its live run or with a new run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.db import connection, transaction
from ravi_django.kernel import AgentId, AgentNotFoundError, DataPayload, InvalidInputError, Message
from ravi_django.models import ACTIVE, Run, Session, Signal, Source, Status, uuid7
from ravi_django.runs import hints
from ravi_django.runs.sessions import create_run, create_session
from ravi_django.runs.wake import touch
from ravi_django.wings.feeds.fetching.adapter import Item
from ravi_django.wings.feeds.sources import items as source_items
from ravi_django.wings.feeds.sources.items import Unread, carry, full_sources, take_first, unread_in

BATCH = 200  # items of one transaction
UNREAD = "its run has reached RAVI['SOURCE_UNREAD'], the limit of unread items; it gets more when it has read some"
UNREAD_S = 60.0  # until the next try
ENOUGH_S = 3600.0
GONE = "the source was disabled or deleted in the meantime"
TRIES = 4  # the chosen run may end before it is locked


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result for a source's items."""

    new: int = 0
    changed: int = 0
    runs_to_hint: tuple[UUID, ...] = ()  # hinted on commit already
    error: str = ""  # why some were not delivered; these are not recorded, and the caller delivers them again
    again_in_s: float = 0.0  # seconds until the next try, with an error that does not count as a failure


class _NotHere(Exception):
    """The chosen run has ended, or a new one would be queued: choose again."""


def deliver(source: Source | UUID, items: Sequence[Item], *, signed_at: datetime | None = None) -> Delivery:
    """Record the new ones of `items`, oldest first, and deliver them to the source's agent in the same transaction: as
    a Signal of the source's name to its live run, else to one new run whose first message is the first item. One
    transaction for 200 items, or the caller's.

    A delivered item is never delivered again. Edits are delivered if the source's option `edits` is true, unless
    they were signed (`signed_at`) before the recorded text. Nothing more is recorded, and the
    source's `error` gives the reason, if the agent is unknown or disabled, the owner is not active, the run has too
    many unread items, or the source has reached its limit for the day.
    """
    source_id = source if isinstance(source, UUID) else source.id
    result = Delivery()
    once = list({item.identity: item for item in items}.values())
    for start in range(0, len(once), BATCH):
        more = _deliver_batch(source_id, once[start : start + BATCH], signed_at)
        runs = tuple(dict.fromkeys((*result.runs_to_hint, *more.runs_to_hint)))
        result = replace(more, new=result.new + more.new, changed=result.changed + more.changed, runs_to_hint=runs)
        if result.error:
            break
    return result


def _deliver_batch(source_id: UUID, items: Sequence[Item], signed_at: datetime | None) -> Delivery:
    with transaction.atomic():
        # One delivery per source at a time: if two have the same item, the second finds its row.
        source = _locked(source_id)
        if source is None:
            return Delivery(error=GONE)
        known = source_items.items_known(source, items)
        source_items.items_seen(known.values())
        news = [item for item in items if item.identity not in known]
        edits = [item for item in items if item.identity in known and known[item.identity].digest != item.digest]
        edits = [item for item in edits if not source_items.is_outdated(known[item.identity], signed_at)]
        if not news and not edits:
            return Delivery()
        addressee = _addressee(source)
        if isinstance(addressee, str):
            return _refused(source, addressee)
        if full_sources([source.id]):
            return _refused(source, UNREAD, UNREAD_S)
        with_edits = source.options.get("edits") is True
        room = source_items.room_today(source)
        news, left = _within(room, news)
        if with_edits:  # those beyond the limit are not recorded, so that tomorrow they still count as edits
            edits, later = _within(None if room is None else room - len(news), edits)
            left += later
        source_items.record_items(source, news, signed_at)
        source_items.record_edits([known[item.identity] for item in edits], edits, signed_at)
        bodies = [source_items.item_body(source, item, 1) for item in news]
        if with_edits:
            bodies += [source_items.item_body(source, item, known[item.identity].revision) for item in edits]
        source_items.count_today(source, len(bodies))
        runs = (_deliver_to_run(source, addressee.version, bodies),) if bodies else ()
        refused = _refused(source, source_items.ENOUGH, ENOUGH_S) if left else Delivery()
        return replace(refused, new=len(news), changed=len(edits), runs_to_hint=runs)


def _within(room: int | None, items: list[Item]) -> tuple[list[Item], list[Item]]:
    return (items, []) if room is None else (items[:room], items[room:])


def _refused(source: Source, error: str, again_in_s: float = 0.0) -> Delivery:
    Source.objects.filter(id=source.id).update(error=error)
    return Delivery(error=error, again_in_s=again_in_s)


def _locked(source_id: UUID) -> Source | None:
    rows = Source.objects.select_for_update(no_key=True, of=("self",)).select_related("owner")
    return rows.filter(id=source_id, enabled=True).first()


def deliver_unread(source_id: UUID) -> UUID | None:
    """Begin a run for the unread items of the source's last run. Returns None if there are none, or if no run can
    begin: then the source's `error` gives the reason."""
    with transaction.atomic():
        source = _locked(source_id)
        if source is None or source.home_id is None:
            return None
        addressee = _addressee(source)
        if isinstance(addressee, str):
            _refused(source, addressee)
            return None
        try:
            with transaction.atomic():
                return _begin(source, addressee.version, [])
        except _NotHere:
            return None


def _addressee(source: Source) -> Any:
    """The agent for a new run, or the reason why there cannot be one."""
    from ravi_django.runs.catalog import specs

    if source.owner is not None and not source.owner.is_active:
        return f"the owner, {source.owner}, is not active; choose another owner, or disable the source"
    try:
        agent = specs.find(source.agent)
        agent.check_variables(_metadata(source))
    except AgentNotFoundError:
        return f"there is no agent {source.agent}, or it is disabled; register or enable it, or choose another"
    except InvalidInputError as error:
        return f"agent {source.agent} does not accept the option metadata: {error}"
    return agent


def _metadata(source: Source) -> dict[str, Any]:
    metadata = source.options.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _deliver_to_run(source: Source, version: int | None, bodies: list[dict[str, Any]]) -> UUID:
    for _ in range(TRIES):
        try:
            with transaction.atomic():  # a rollback releases the locks: the next try holds none
                live = _live(source)
                if live is not None:
                    _signal(source, live, bodies)
                    return live
                return _begin(source, version, bodies)
        except _NotHere:
            continue
    left = source.home_id
    _set_home(source, None)  # a run of another owner is active there
    run_id = _begin(source, version, bodies)
    if left is not None:
        carry(unread_in(source, left), run_id)
    return run_id


def _live(source: Source) -> UUID | None:
    """Lock the run that gets the items. A run outside of the source's session must wait for this signal; its session
    becomes the source's."""
    row = None
    if source.home_id is not None:
        here = _runs(source).filter(session_id=source.home_id, status__in=ACTIVE)
        row = here.values_list("id", "session_id").first()
    row = row or _waiting(source)
    if row is None:
        return None
    run_id, session_id = row
    locked = Run.objects.select_for_update(no_key=True, of=("self",)).filter(id=run_id, agent=source.agent)
    if not locked.filter(status__in=ACTIVE).values_list("id").first():  # it has ended, or was handed to another agent
        raise _NotHere
    if session_id != source.home_id:
        if source.home_id is not None:
            carry(unread_in(source, source.home_id), run_id)
        _set_home(source, session_id)
    return UUID(str(run_id))


def _runs(source: Source) -> QuerySet[Run]:
    return Run.objects.filter(agent=source.agent, owner_id=source.owner_id, tenant=source.tenant, parent=None)


def _waiting(source: Source) -> tuple[UUID, UUID] | None:
    rows = _runs(source).filter(status=Status.SUSPENDED).order_by("-id")
    if connection.features.supports_json_field_contains:
        rows = rows.filter(waiting_on__contains=[{"kind": "signal", "name": source.signal}])
    for run_id, session_id, waits in rows.values_list("id", "session_id", "waiting_on")[:BATCH]:
        if any(wait.get("kind") == "signal" and wait.get("name") == source.signal for wait in waits or ()):
            return run_id, session_id
    return None


def _signal(source: Source, run_id: UUID, bodies: list[dict[str, Any]]) -> None:
    rows = [Signal(run_id=run_id, name=source.signal, payload=body, key=_key(body)) for body in bodies]
    Signal.objects.bulk_create(rows, ignore_conflicts=True)
    touch([run_id])
    hints.on_commit(run_id)


def _key(body: dict[str, Any]) -> str:
    return hashlib.sha256(f"{body['source_id']}\0{body['identity']}\0{body['revision']}".encode()).hexdigest()


def _begin(source: Source, version: int | None, bodies: list[dict[str, Any]]) -> UUID:
    """A run in the source's session, with the unread items of the runs before it, the oldest first. Raises _NotHere
    when it would be queued behind another run, which may never end."""
    left, home_id = Unread(), source.home_id
    if home_id is None:
        home = Session(owner=source.owner, tenant=source.tenant, agent=source.agent, title=source.name)
        home_id = create_session(home).id
        _set_home(source, home_id)
    else:
        list(Session.objects.select_for_update(no_key=True).filter(id=home_id).values_list("id"))
        left = unread_in(source, home_id)  # under the lock: none of these runs is retried meanwhile
    run = Run(
        id=uuid7(),
        agent=source.agent,
        owner=source.owner,
        tenant=source.tenant,
        session_id=home_id,
        agent_version=version,
        metadata=_metadata(source),
    )
    message = left.boot
    if message is None and left.signals:
        key, payload = take_first(left)
        message = _boot(source, payload if isinstance(payload, dict) else {"data": payload}, key)
    elif message is None:
        if not bodies:
            raise _NotHere
        message = _boot(source, bodies[0], _key(bodies[0]))
        bodies = bodies[1:]
    create_run(run, message)
    if run.status == Status.QUEUED:
        raise _NotHere
    carry(left, run.id)
    if bodies:
        _signal(source, run.id, bodies)
    else:
        hints.on_commit(run.id)
    return run.id


def _boot(source: Source, body: dict[str, Any], key: str) -> dict[str, Any]:
    message = Message(
        id=key[:32],
        target=AgentId.parse(source.agent),
        payload=DataPayload(data=body),
        correlation_id=str(source.home_id),
    )
    return message.to_json()


def _set_home(source: Source, session_id: Any) -> None:
    source.home_id = session_id
    Source.objects.filter(id=source.id).update(home_id=session_id)
