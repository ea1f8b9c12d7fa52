"""The rows of sources and of their items: claim a source that is due, write the result of a poll, limit the items a
day, and count the items that runs have not read.

`polling_until` is a poller's lease of the source. A result is written only if that time is unchanged. If a poller is
killed, the items it delivered stay delivered, and the source is due again after that time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, F, Max, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.db import clock
from ravi_django.kernel.json_values import storable
from ravi_django.models import ACTIVE, TERMINAL, InboxMessage, JournalEntry, Run, Signal, Source, SourceItem, Status
from ravi_django.runs.wake import touch
from ravi_django.wings.feeds.fetching.adapter import Item, Polled

STATE = "state"  # the option that holds an adapter's state
MOVED = "moved_from"  # the option that holds a feed's address before it moved


def _due(kinds: Collection[str]) -> QuerySet[Source]:
    present = clock.now()
    return Source.objects.filter(
        Q(next_at=None) | Q(next_at__lte=present),
        Q(polling_until=None) | Q(polling_until__lte=present),
        enabled=True,
        kind__in=sorted(kinds),
    )


def any_source_due(kinds: Collection[str]) -> bool:
    return _due(kinds).exists()


def claim_sources(kinds: Collection[str], limit: int, lease_s: float) -> list[Source]:
    """Lease up to `limit` due sources for `lease_s` seconds, without those that another poller is claiming."""
    with transaction.atomic():
        rows = _due(kinds).select_for_update(skip_locked=True, no_key=True)
        oldest = F("next_at").asc(nulls_first=True)
        ids = [row.id for row in rows.order_by(oldest, "id").only("id")[:limit]]
        Source.objects.filter(id__in=ids).update(polling_until=clock.after(lease_s))
        return list(Source.objects.filter(id__in=ids).order_by(oldest, "id"))


def renew_sources(sources: Sequence[Source], lease_s: float) -> None:
    """Renew the leases that no other poller has taken over. The new time goes into `polling_until` of `sources`."""
    with transaction.atomic():
        rows = Source.objects.select_for_update(no_key=True).filter(_held(*sources)).order_by("id")
        ids = list(rows.values_list("id", flat=True))
        Source.objects.filter(id__in=ids).update(polling_until=clock.after(lease_s))
        until = dict(Source.objects.filter(id__in=ids).values_list("id", "polling_until"))
    for source in sources:
        source.polling_until = until.get(source.id, source.polling_until)


def put_off(sources: Sequence[Source], seconds: float, error: str = "") -> int:
    """End the leases without a poll; the sources are due again in `seconds`. An `error` here is not a failure."""
    changes = {"error": _storable(error)} if error else {}
    return Source.objects.filter(_held(*sources)).update(polling_until=None, next_at=clock.after(seconds), **changes)


def _storable(text: str) -> str:
    return str(storable(str(text)))[:2000]


def _held(*sources: Source) -> Q:
    held = Q(id__in=[])
    for source in sources:
        held |= Q(id=source.id, polling_until=source.polling_until)
    return held


def source_polled(source: Source, polled: Polled, next_in_s: float) -> bool:
    """Write a poll whose items were delivered. False: another poller has the lease now, and repeats the poll."""
    changes: dict[str, Any] = {"failures": 0, "error": _storable(polled.note)}
    if polled.etag is not None:
        changes["etag"] = polled.etag
    if polled.modified is not None:
        changes["modified"] = polled.modified
    options: dict[str, Any] = {} if polled.state is None else {STATE: polled.state}
    if polled.location and polled.location != source.location:
        changes["location"] = polled.location
        options[MOVED] = source.location
    return _end(source, next_in_s, options, changes)


def source_failed(source: Source, error: str, next_in_s: float, *, gone: bool = False) -> bool:
    """Write a poll that failed, or whose items could not be delivered: the next poll reads them again."""
    off = {"enabled": False} if gone else {}
    return _end(source, next_in_s, {}, {"failures": F("failures") + 1, "error": _storable(error), **off})


def _end(source: Source, next_in_s: float, options: dict[str, Any], changes: dict[str, Any]) -> bool:
    with transaction.atomic():
        held = Source.objects.select_for_update(no_key=True).filter(_held(source))
        present = held.values_list("options", flat=True).first()
        if present is None:
            return False
        if options:  # a person may have edited the other options meanwhile
            changes["options"] = {**present, **options}
        if "location" in changes and not held.filter(location=source.location).exists():
            del changes["location"]
        times = {"polling_until": None, "checked_at": clock.now(), "next_at": clock.after(next_in_s)}
        return bool(Source.objects.filter(_held(source)).update(**times, **changes))


A_DAY = 2_000  # items, new or edited, of feeds and webhooks
TODAY = "delivered_today"  # the option that counts them: {date, items}
ENOUGH = (
    "the source has reached its option max_items_a_day for today; the rest is delivered tomorrow if the source "
    "still has it"
)
SEEN_S = 24 * 3600.0  # between two writes of `seen_at`
ROWS = 5_000  # deleted in one transaction, at most


def items_known(source: Source, items: Sequence[Item]) -> dict[str, SourceItem]:
    rows = SourceItem.objects.filter(source=source, identity__in=[item.identity for item in items])
    return {row.identity: row for row in rows}


def items_seen(rows: Collection[SourceItem]) -> None:
    """Record that they are still in the source. No query unless the last record is a day old."""
    before = (clock.fixed() or timezone.now()) - timedelta(seconds=SEEN_S)
    if old := [row.id for row in rows if row.seen_at < before]:
        SourceItem.objects.filter(id__in=old).update(seen_at=clock.now())


def is_outdated(row: SourceItem, signed_at: datetime | None) -> bool:
    """Whether the row's text was signed later: a repeated old webhook request is not an edit."""
    return signed_at is not None and row.signed_at is not None and signed_at < row.signed_at


def record_items(source: Source, items: Sequence[Item], signed_at: datetime | None = None) -> None:
    """Raises IntegrityError when another transaction has recorded one of them: no item is delivered twice."""
    present = clock.fixed()
    seen = {} if present is None else {"seen_at": present}
    SourceItem.objects.bulk_create(
        SourceItem(
            source=source,
            identity=item.identity,
            digest=item.digest,
            title=item.title,
            url=item.url,
            signed_at=signed_at,
            **seen,
        )
        for item in items
    )


def record_edits(rows: list[SourceItem], items: Sequence[Item], signed_at: datetime | None = None) -> None:
    for row, item in zip(rows, items, strict=True):
        row.digest, row.title, row.url = item.digest, item.title, item.url
        row.revision += 1
        row.changed_at = clock.now()
        row.signed_at = signed_at or row.signed_at
    SourceItem.objects.bulk_update(rows, ["digest", "title", "url", "revision", "changed_at", "signed_at"])


def item_body(source: Source, item: Item, revision: int) -> dict[str, Any]:
    about = {"source": source.name, "source_id": str(source.id), "identity": item.identity, "revision": revision}
    body: dict[str, Any] = storable({**item.to_json(), **about})
    return body


def room_today(source: Source) -> int | None:
    """How many more of its items may be delivered today (UTC); None: no limit."""
    most = most_a_day(source)
    return None if most is None else max(0, most - _delivered_today(source))


def count_today(source: Source, delivered: int) -> None:
    if delivered and most_a_day(source) is not None:
        counted = {"date": _today(), "items": _delivered_today(source) + delivered}
        source.options = {**source.options, TODAY: counted}
        Source.objects.filter(id=source.id).update(options=source.options)


def most_a_day(source: Source) -> int | None:
    default = A_DAY if source.kind in (Source.Kind.FEED, Source.Kind.WEBHOOK) else None
    return _count(source.options.get("max_items_a_day")) or default


def _delivered_today(source: Source) -> int:
    counted = source.options.get(TODAY)
    is_today = isinstance(counted, dict) and counted.get("date") == _today()
    return _count(counted.get("items")) if is_today else 0


def _count(value: Any) -> int:
    """A whole number above 0, else 0: options may hold anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _today() -> str:
    return (clock.fixed() or timezone.now()).date().isoformat()


def prune(older_than_s: float, dry_run: bool) -> int:
    """Delete items that were not seen for so long, while others of the source were: what is in its last answer stays.
    Items of GitHub stay, because its signatures do not expire. Deletes ROWS in one transaction; returns the number of
    all, or with `dry_run` counts them."""
    gone = 0
    for source_id, before in _with_old(older_than_s):
        rows, last = _old(source_id, before, older_than_s), ""
        if dry_run:
            gone += rows.count()
            continue
        while batch := list(rows.filter(identity__gt=last).order_by("identity").values_list("id", "identity")[:ROWS]):
            gone += rows.filter(id__in=[row_id for row_id, _ in batch]).delete()[0]  # seen again meanwhile, it stays
            last = batch[-1][1]
    return gone


def _with_old(older_than_s: float) -> list[tuple[UUID, datetime]]:
    """The sources that have such items, with the latest `seen_at` of an item to delete. One query, which reads each
    item once."""
    rows = SourceItem.objects.exclude(
        source__in=Source.objects.filter(kind=Source.Kind.WEBHOOK, options__scheme="github")
    )
    by_source = rows.order_by().values("source").annotate(first=Min("seen_at"), latest=Max("seen_at"))
    there = timedelta(seconds=2 * SEEN_S)
    old = by_source.filter(first__lt=clock.after(-older_than_s)).filter(first__lt=F("latest") - there)
    return [(source_id, latest - there) for source_id, latest in old.values_list("source", "latest")]


def _old(source_id: UUID, before: datetime, older_than_s: float) -> QuerySet[SourceItem]:
    rows = SourceItem.objects.filter(source=source_id, seen_at__lt=before)
    return rows.filter(seen_at__lt=clock.after(-older_than_s))


RUNS = 50  # the newest of a session, whose unread items are moved
LOOKED_AT = 200  # sources of one sweep
AFTER_FAILURE_S = 300.0  # from a run that failed until the sweep begins another; twice as long each time
LONGEST_S = 24 * 3600.0
_MOVED = 1_000  # signals of one statement

# It failed by a budget before it had done anything: its first item is not read.
_DONE = JournalEntry.objects.filter(run=OuterRef("id")).exclude(kind__in=["run.started", "llm.call", "run.failed"])
_UNTOUCHED = Q(
    ~Exists(_DONE),
    status=Status.FAILED,
    generation=0,
    input_tokens=0,
    output_tokens=0,
    error__type="BudgetExhaustedError",
)


@dataclass(slots=True)
class Unread:
    """Unread items of ended runs."""

    boot: dict[str, Any] | None = None  # the first message of the last one, when it has done nothing
    signals: list[tuple[int, str]] = field(default_factory=list)  # id and key, oldest first


def unread_in(source: Source, session_id: UUID) -> Unread:
    """The unread items of the agent's ended runs of this session, of all sources that deliver there."""
    same = {"agent": source.agent, "owner_id": source.owner_id, "tenant": source.tenant}
    runs = Run.objects.filter(session_id=session_id, parent=None, **same)
    newest = list(runs.order_by("-id").values_list("id", "status")[:RUNS])
    ended = [run_id for run_id, status in newest if status in TERMINAL]
    if not ended:
        return Unread()
    names = {source.signal, *Source.objects.filter(home_id=session_id, **same).values_list("signal", flat=True)}
    rows = Signal.objects.filter(run_id__in=ended, consumed_at=None, name__in=names).exclude(key="")
    return Unread(_untouched(ended[0]), list(rows.order_by("id").values_list("id", "key")))


def _untouched(run_id: UUID) -> dict[str, Any] | None:
    if not Run.objects.filter(_UNTOUCHED, id=run_id).exists():
        return None
    messages = InboxMessage.objects.filter(run_id=run_id).order_by("id").values_list("message_id", "body")
    id, body = messages.first() or ("", {})
    payload = body.get("payload") or {}
    is_item = payload.get("kind") == "data" and "source_id" in (payload.get("data") or {})
    return {"id": id, **body} if is_item else None


def take_first(unread: Unread) -> tuple[str, Any]:
    """Consume the oldest: its key and its payload."""
    signal_id, key = unread.signals.pop(0)
    payload = Signal.objects.values_list("payload", flat=True).get(id=signal_id)
    Signal.objects.filter(id=signal_id, consumed_at=None).update(consumed_at=clock.now())
    return key, payload


def carry(unread: Unread, run_id: UUID) -> None:
    """Move the signals to another run in their order, before all that it gets later, and wake it."""
    there = set(Signal.objects.filter(run_id=run_id).exclude(key="").values_list("key", flat=True))
    ids: list[int] = []
    twice: list[int] = []
    for signal_id, key in unread.signals:
        (twice if key in there else ids).append(signal_id)
        there.add(key)
    for start in range(0, len(ids), _MOVED):
        part = Signal.objects.filter(id__in=ids[start : start + _MOVED], consumed_at=None)
        part.update(run_id=run_id, woke=True)
    Signal.objects.filter(id__in=twice, consumed_at=None).update(consumed_at=clock.now())
    if ids:
        touch([run_id])


def _roots() -> QuerySet[Run]:
    """Subquery of a query on sources."""
    return Run.objects.filter(session_id=OuterRef("home_id"), agent=OuterRef("agent"), parent=None)


def _newest(field: str, nth: int = 0) -> Subquery:
    return Subquery(_roots().exclude(status=Status.QUEUED).order_by("-id").values(field)[nth : nth + 1])


def full_sources(source_ids: Collection[UUID]) -> set[UUID]:
    """Those whose active or last run has RAVI["SOURCE_UNREAD"] of their items unread. One query."""
    alive = Subquery(_roots().filter(status__in=ACTIVE).values("id")[:1])
    rows = Source.objects.filter(id__in=source_ids, home__isnull=False)
    rows = rows.annotate(run=Coalesce(alive, _newest("id")))
    unread = Signal.objects.filter(run_id=OuterRef("run"), consumed_at=None, name=OuterRef("signal"))
    return set(rows.filter(Exists(_beyond(unread))).values_list("id", flat=True))


def is_full(run_id: UUID | str, name: str) -> bool:
    """Whether an active run has RAVI["SOURCE_UNREAD"] signals of this name unread."""
    rows = Signal.objects.filter(run_id=run_id, consumed_at=None, name=name).exclude(run__status__in=TERMINAL)
    return _beyond(rows).exists()


def _beyond(unread: QuerySet[Signal]) -> QuerySet[Signal]:
    most = max(1, int(conf.SOURCE_UNREAD))
    return unread.order_by("id")[most - 1 : most]


def left_unread(limit: int) -> list[UUID]:
    """Sources whose last run has ended with items unread, when it is time for another run. One query; of too many
    sources a random choice, so that those that wait cannot block the others."""
    unread = Signal.objects.filter(run_id=OuterRef("id"), consumed_at=None, name=OuterRef(OuterRef("signal")))
    ended = Run.objects.filter(Exists(unread.exclude(key="")) | _UNTOUCHED, id=OuterRef("run"), status__in=TERMINAL)
    rows = Source.objects.filter(enabled=True, home__isnull=False)
    rows = rows.annotate(run=_newest("id")).filter(Exists(ended), ~Exists(_roots().filter(status__in=ACTIVE)))
    rows = rows.annotate(
        present=clock.now(),
        last=_newest("status"),
        ended_at=_newest("finished_at"),
        begun_at=_newest("created_at"),
        before=_newest("status", 1),
        before_at=_newest("created_at", 1),
    )
    return [row.id for row in rows.only("id").order_by("?")[:LOOKED_AT] if _is_time(row)][:limit]


def _is_time(row: Any) -> bool:
    if row.last == Status.COMPLETED or row.ended_at is None:
        return True
    pause = AFTER_FAILURE_S
    if row.before in (Status.FAILED, Status.CANCELLED):
        pause = min(max(pause, 2 * (row.begun_at - row.before_at).total_seconds()), LONGEST_S)
    return bool(row.ended_at + timedelta(seconds=pause) <= row.present)
