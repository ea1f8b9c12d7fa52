"""The fenced append: the one statement that every journaled effect costs.

On PostgreSQL a single statement updates the run where the epoch is still ours, and inserts the rows under the numbers
that this update returned. The UPDATE waits for a concurrent claim and re-checks the epoch; a SELECT of the epoch
would let a zombie through. The fence names the owner, not the status: a released run has none, and the planner has no
index to prefer over the primary key. Other databases do the same in one short transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from django.db.models import F, Value
from django.db.models.functions import Now

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.kernel import Event, LeaseLostError
from ravi_django.models import JournalEntry, Run, Session, Turn
from ravi_django.runtime import clock
from ravi_django.runtime.entries import SCHEMA, Entry, NewTurn, dumps, fits_in_row, journal_row, stored_text
from ravi_django.runtime.store import outbox
from ravi_django.runtime.store.postgres import as_text, cast
from ravi_django.runtime.store.postgres import execute as _execute

if TYPE_CHECKING:
    from ravi_django.runtime.store.leases import Lease

_ENTRY = (
    ("id", "uuid"),
    ("path", "text"),
    ("attempt", "int"),
    ("phase", "text"),
    ("kind", "text"),
    ("name", "text"),
    ("request", "jsonb"),
    ("digests", "jsonb"),
    ("result", "jsonb"),
    ("error", "jsonb"),
    ("input_tokens", "int"),
    ("cached_tokens", "int"),
    ("output_tokens", "int"),
    ("reasoning_tokens", "int"),
    ("cost", "numeric"),
    ("inbox_upto", "bigint"),
    ("elapsed", "float8"),
)
MAX_ROWS = 50  # in one statement; more (thousands of notes between two effects) go through the ORM
_TURN = (("agent", "text"), ("role", "text"), ("content", "jsonb"), ("name", "text"), ("keeps", "int"))


@dataclass(frozen=True, slots=True)
class Statement:
    """An append that is one statement of text parameters."""

    sql: str
    params: Sequence[str | None]
    answer: Callable[[Sequence[Any]], int]  # takes its row, empty where it has none; raises LeaseLostError


def append(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn]) -> int:
    """Write rows under the lease; returns the seq of the first. Raises LeaseLostError when the fence is gone."""
    if _in_one_statement(entries, turns):
        return _append_postgres(lease, entries, turns)
    with transaction.atomic():
        return _append_by_orm(lease, entries, turns)


def append_statement(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn]) -> Statement | None:
    """The append as one statement, for a connection of the event loop; None where it is more."""
    if not _in_one_statement(entries, turns) or not all(map(fits_in_row, entries)):
        return None
    told = outbox.of_entries(lease.run, entries)

    def answer(row: Sequence[Any]) -> int:
        if not row:
            raise LeaseLostError(lease.run_id, lease.epoch)
        if told:
            outbox.hint()
        return int(row[0])

    return Statement(*_bound(lease, entries, turns, told=told), answer)


def append_in_transaction(
    lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn], *, seen: int | None = None, **changes: Any
) -> int:
    """The same inside the caller's transaction, with other changes of the run beside it. With `seen`, the number of a
    wake-up, a run that was woken since is refused as one whose lease is lost."""
    if not _in_one_statement(entries, turns):
        return _append_by_orm(lease, entries, turns, seen=seen, **changes)
    given = {name: value.value if isinstance(value, Value) else value for name, value in changes.items()}
    plain = {name: value for name, value in given.items() if type(value) is Now or not _is_expression(value)}
    first = _append_postgres(lease, entries, turns, plain, seen)
    if others := {name: value for name, value in changes.items() if name not in plain}:
        Run.objects.filter(id=lease.run_id).update(**others)  # fenced: the statement before holds the row
    return first


def _is_expression(value: Any) -> bool:
    return hasattr(value, "resolve_expression")


def _in_one_statement(entries: Sequence[Entry], turns: Sequence[NewTurn]) -> bool:
    return connection.vendor == "postgresql" and bool(entries) and len(entries) + len(turns) <= MAX_ROWS


def sums(entries: Sequence[Entry]) -> tuple[int, int, int, int, float, bool]:
    """Usage and known cost of the entries, and whether some cost is unknown."""
    used = [entry for entry in entries if entry.usage is not None]
    usages = [entry.usage for entry in used if entry.usage is not None]
    return (
        sum(usage.input_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
        sum(usage.reasoning_tokens for usage in usages),
        sum(entry.cost or 0.0 for entry in used),
        any(entry.cost is None for entry in used),
    )


def _append_by_orm(
    lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn], *, seen: int | None = None, **changes: Any
) -> int:
    tokens_in, cached, tokens_out, reasoning, cost, unknown = sums(entries)
    if any(entry.is_effect for entry in entries):
        changes = {"crashes": 0, "attempts": 0, **changes}
    if unknown:
        changes["cost_unknown"] = True
    unwoken = {} if seen is None else {"wake_seq": seen}
    held = Run.objects.filter(id=lease.run_id, lease_epoch=lease.epoch, lease_owner=lease.owner, **unwoken)
    updated = held.update(
        **{
            "next_seq": F("next_seq") + len(entries),
            "next_turn": F("next_turn") + len(turns),
            "input_tokens": F("input_tokens") + tokens_in,
            "cached_tokens": F("cached_tokens") + cached,
            "output_tokens": F("output_tokens") + tokens_out,
            "reasoning_tokens": F("reasoning_tokens") + reasoning,
            "cost": F("cost") + cost,
            "release": conf.RELEASE,
            **changes,
        }
    )
    if not updated:
        raise LeaseLostError(lease.run_id, lease.epoch)
    next_seq, generation, next_turn = Run.objects.values_list("next_seq", "generation", "next_turn").get(
        id=lease.run_id
    )
    base = next_seq - len(entries)
    JournalEntry.objects.bulk_create(
        journal_row(
            entry,
            run_id=lease.run_id,
            seq=base + place,
            generation=generation,
            epoch=lease.epoch,
            now=clock.now(),
            start=clock.after(-entry.elapsed_s),
        )
        for place, entry in enumerate(entries)
    )
    _write_turns(lease, turns, next_turn - len(turns))
    outbox.write(outbox.of_entries(lease.run, entries, changes.get("output")))
    return int(base)


def _write_turns(lease: Lease, turns: Sequence[NewTurn], index: int) -> None:
    if not turns:
        return
    session_id = turns[0].session_id
    Session.objects.filter(id=session_id).update(next_position=F("next_position") + len(turns))
    end = Session.objects.values_list("next_position", flat=True).get(id=session_id)
    Turn.objects.bulk_create(
        Turn(
            session_id=session_id,
            agent=turn.agent,
            position=end - len(turns) + place,
            run_id=lease.run_id,
            index=index + place,
            role=turn.message.role,
            content=turn.message.to_json()["content"],
            name=turn.message.name or "",
            keeps=turn.keeps,
        )
        for place, turn in enumerate(turns)
    )


def _append_postgres(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn],
    changes: dict[str, Any] | None = None,
    seen: int | None = None,
) -> int:
    told = outbox.of_entries(lease.run, entries, (changes or {}).get("output"))
    rows = _execute(*_bound(lease, entries, turns, changes, seen, told))
    if not rows:
        raise LeaseLostError(lease.run_id, lease.epoch)
    if told:
        outbox.hint_on_commit()
    return int(rows[0][0])


def _bound(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn],
    changes: dict[str, Any] | None = None,
    seen: int | None = None,
    told: Sequence[Event] = (),
) -> tuple[str, list[str | None]]:
    """The statement and its parameters."""
    tokens_in, cached, tokens_out, reasoning, cost, unknown = sums(entries)
    effect = any(entry.is_effect for entry in entries)
    # Everything goes as text: parameters of one type keep one prepared statement.
    params: list[str | None] = [
        str(len(entries)),
        str(len(turns)),
        str(tokens_in),
        str(cached),
        str(tokens_out),
        str(reasoning),
        repr(cost),
        "t" if unknown else "f",
        *_change_params(changes, effect),
        str(lease.run_id),
        str(lease.epoch),
        lease.owner,
        *([] if seen is None else [str(seen)]),
    ]
    present = clock.fixed()
    now = present.isoformat() if present else None
    for entry in entries:
        params += _entry_params(entry)
    params += [now, str(SCHEMA), str(lease.epoch)]
    if turns:
        params += [str(turns[0].session_id), now]
        for turn in turns:
            params += [
                turn.agent,
                turn.message.role.value,
                dumps(turn.message.to_json()["content"]),
                turn.message.name or "",
                None if turn.keeps is None else str(turn.keeps),
            ]
    if told:
        params += [now, *outbox.params(told)]
    return _statement(len(entries), len(turns), _shape(changes or {}), seen is not None, len(told)), params


def _change_params(changes: dict[str, Any] | None, effect: bool) -> list[str | None]:
    """A recorded effect forgets crashes and attempts, unless the caller says what they are."""
    given = changes or {}
    kept: list[str | None] = [] if "release" in given else [conf.RELEASE]
    kept += ["0" if effect else "1" for name in ("crashes", "attempts") if name not in given]
    meta: Any = Run._meta
    return kept + [as_text(meta.get_field(name), value) for name, value in given.items() if type(value) is not Now]


def _shape(changes: dict[str, Any]) -> tuple[tuple[str, bool], ...]:
    """What the statement has to know of the changes: the fields, and whether one is the present."""
    return tuple((name, type(value) is Now) for name, value in changes.items())


def _entry_params(entry: Entry) -> list[str | None]:
    usage = entry.usage
    tokens: list[str | None] = [None] * 4
    if usage is not None:
        tokens = [
            str(usage.input_tokens),
            str(usage.cached_tokens),
            str(usage.output_tokens),
            str(usage.reasoning_tokens),
        ]
    return [
        str(entry.id),
        entry.path,
        str(entry.attempt),
        entry.phase,
        entry.kind,
        entry.name,
        stored_text(entry, "request"),
        dumps(entry.digests),
        stored_text(entry, "result"),
        dumps(entry.error),
        *tokens,
        None if entry.cost is None else repr(entry.cost),
        None if entry.inbox_upto is None else str(entry.inbox_upto),
        repr(entry.elapsed_s),
    ]


def _values(columns: Sequence[tuple[str, str]], count: int) -> str:
    """VALUES of `count` rows, numbered from 0 in a column `place`; only the first row needs the types."""
    typed = ", ".join(f"%s::{kind}" for _, kind in columns)
    return ", ".join(f"({place}, {typed})" for place in range(count))


@cache
def _statement(entries: int, turns: int, changes: tuple[tuple[str, bool], ...], unwoken: bool, told: int) -> str:
    since = "AND wake_seq = %s::bigint" if unwoken else ""
    more = [] if "release" in dict(changes) else ["release = %s::text"]
    more += [f"{name} = {name} * %s::int" for name in ("crashes", "attempts") if name not in dict(changes)]
    for name, is_now in changes:
        field: Any = Run._meta.get_field(name)
        more.append(f"{field.column} = " + ("statement_timestamp()" if is_now else f"%s::{cast(field)}"))
    names = ", ".join(name for name, _ in _ENTRY)
    stored = ", ".join(name for name, _ in _ENTRY if name != "elapsed")
    picked = ", ".join(f"e.{name}" for name, _ in _ENTRY if name != "elapsed")
    sql = f"""
WITH fence AS (
  UPDATE ravi_run SET
    next_seq = next_seq + %s::int, next_turn = next_turn + %s::int,
    input_tokens = input_tokens + %s::bigint, cached_tokens = cached_tokens + %s::bigint,
    output_tokens = output_tokens + %s::bigint, reasoning_tokens = reasoning_tokens + %s::bigint,
    cost = cost + %s::numeric, cost_unknown = cost_unknown OR %s::boolean,
    {", ".join(more)}
  WHERE id = %s::uuid AND lease_epoch = %s::bigint AND lease_owner = %s::text {since}
  RETURNING id, generation, next_seq - {entries} AS base, next_turn - {turns} AS turn_base
), entries AS (
  INSERT INTO ravi_journalentry (run_id, seq, generation, {stored}, schema, epoch, started_at, finished_at)
  SELECT fence.id, fence.base + e.place, fence.generation, {picked}, c.schema, c.epoch,
         c.now - make_interval(secs => e.elapsed), c.now
  FROM fence, (VALUES {_values(_ENTRY, entries)}) AS e(place, {names}),
       (SELECT coalesce(%s::timestamptz, statement_timestamp()) AS now, %s::int AS schema, %s::bigint AS epoch) AS c
)"""  # noqa: S608 - built from the constants above
    if turns:
        names = ", ".join(name for name, _ in _TURN)
        sql += f""", place AS (
  UPDATE ravi_session SET next_position = next_position + {turns} FROM fence
  WHERE ravi_session.id = %s::uuid RETURNING ravi_session.id, next_position - {turns} AS base
), turns AS (
  INSERT INTO ravi_turn (session_id, run_id, position, index, agent, role, content, name, keeps, created_at)
  SELECT place.id, fence.id, place.base + t.place, fence.turn_base + t.place, t.agent, t.role, t.content, t.name,
         t.keeps, coalesce(%s::timestamptz, statement_timestamp())
  FROM fence, place, (VALUES {_values(_TURN, turns)}) AS t(place, {names})
)"""  # noqa: S608
    if told:
        sql += f", told AS ({outbox.insert(told, 'fence')})"
    return sql + " SELECT base FROM fence"  # noqa: S608
