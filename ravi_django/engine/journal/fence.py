"""The fenced append: the one statement that each journaled effect costs.

On PostgreSQL one statement updates the run if the epoch is still ours, and inserts the rows under the numbers that the
update returned. The UPDATE waits for a concurrent claim and checks the epoch again; a SELECT of the epoch would let a
zombie write. The fence checks the owner, not the status: a released run has no owner, and no index on it can tempt the
planner away from the primary key. Other databases do the same in one short transaction.

The fence also checks the seq that the rows get: a statement that the server executes late, and a repeat of an append
whose answer was lost, match no run. What was refused, or tried before, is looked up under the run's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import IntegrityError
from django.db.models import F, Value
from django.db.models.functions import Now

from ravi_django.conf import conf
from ravi_django.db import connection, transaction
from ravi_django.engine.db import clock
from ravi_django.engine.db.postgres import as_text, cast, execute as _execute
from ravi_django.engine.journal import outbox
from ravi_django.engine.journal.entries import (
    SCHEMA,
    TOKENS,
    Entry,
    NewTurn,
    dumps,
    fits_in_row,
    journal_row,
    stored_text,
    write_turns,
)
from ravi_django.engine.journal.lease import Lease
from ravi_django.kernel import LeaseLostError
from ravi_django.models import JournalEntry, Run
from ravi_django.models.fields import KINDS, PHASES, ROLES, number_of, packed_digests

_ENTRY = (
    "path, attempt, phase, kind, name, request, digests, result, error, trace, "
    "input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, read_upto"
)
_ENTRY_VALUES = (
    "%s::text, %s::smallint, %s::smallint, %s::smallint, %s::text, %s::json, %s::bytea, %s::json, %s::jsonb, "
    "%s::jsonb, %s::int, %s::int, %s::int, %s::int, %s::numeric, %s::bigint, %s::float8"  # …, elapsed seconds
)
_TURN = "entry_seq, agent, content, role, name, keeps, shared, seen"  # see `NewTurn.columns`
_TURN_VALUES = "%s::int, %s::text, %s::jsonb, %s::smallint, %s::text, %s::int, %s::boolean, %s::int"
MAX_ROWS = 50  # in one statement; more (thousands of notes between two effects) go through the ORM


@dataclass(frozen=True, slots=True)
class Statement:
    """An append as one statement with text parameters."""

    sql: str
    params: Sequence[str | None]
    answer: Callable[[Sequence[Any]], int]  # from the row to the first seq


class AlreadyWritten(Exception):
    """An earlier try has written the rows; its argument is the seq of the first."""


def append(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn]) -> int:
    """Write rows under the lease; returns the seq of the first. Raises LeaseLostError and AlreadyWritten."""
    with nullcontext() if in_one_statement(entries, turns) else transaction.atomic():
        return append_in_transaction(lease, entries, turns)


def append_statement(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn]) -> Statement | None:
    """The append as one statement, for a connection of the event loop; None if it takes more than one."""
    if not in_one_statement(entries, turns) or _is_tried(entries) or not all(map(fits_in_row, entries)):
        return None
    return _bound(lease, entries, turns, lease.next_seq, _position(entries), hint=outbox.hint)


def _is_tried(entries: Sequence[Entry]) -> bool:
    return any([entry.seq for entry in entries])


def append_in_transaction(
    lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn], *, seen: int | None = None, **changes: Any
) -> int:
    """`append` inside the caller's transaction, if there is one, together with other changes of the run. With `seen`,
    the number of a wake-up, raises LeaseLostError also if the run was woken since."""
    changes = _position(entries) | changes
    write = _by_statement if in_one_statement(entries, turns) else _by_orm
    first = lease.next_seq
    if not _is_tried(entries) and write(lease, entries, turns, first, changes, seen):
        return first
    with transaction.atomic():
        first = _locked_seq(lease, entries, seen)
        if not write(lease, entries, turns, first, changes, seen):
            raise LeaseLostError(lease.run_id, lease.epoch)
        return first


def _locked_seq(lease: Lease, entries: Sequence[Entry], seen: int | None) -> int:
    """Lock the run and read the seq of its next row. Raises AlreadyWritten if an earlier try has written the entries,
    and IntegrityError if it has written only some, with others."""
    next_seq = _held(lease, seen).select_for_update(no_key=True).values_list("next_seq", flat=True).first()
    if next_seq is None:
        raise LeaseLostError(lease.run_id, lease.epoch)
    tried = {entry.seq: (entry.path, entry.attempt, entry.phase) for entry in entries if entry.seq}
    rows = JournalEntry.objects.filter(run_id=lease.run_id, epoch=lease.epoch, seq__in=tried)
    written = sorted(
        seq for seq, *row in rows.values_list("seq", "path", "attempt", "phase") if tuple(row) == tried[seq]
    )
    if written and len(written) == len(entries):
        raise AlreadyWritten(written[0])
    if written:
        raise IntegrityError(f"run {lease.run_id}: rows {written} are written, with others")
    return int(next_seq)


def _held(lease: Lease, seen: int | None) -> Any:
    unwoken = {} if seen is None else {"wake_seq": seen}
    return Run.objects.filter(id=lease.run_id, lease_epoch=lease.epoch, lease_owner=lease.owner, **unwoken)


def _by_statement(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn],
    first: int,
    changes: dict[str, Any],
    seen: int | None,
) -> bool:
    """Whether the fence matched the run, whose next row has the seq `first`."""
    values = {name: value.value if isinstance(value, Value) else value for name, value in changes.items()}
    plain = {
        name: value for name, value in values.items() if type(value) is Now or not hasattr(value, "resolve_expression")
    }
    statement = _bound(lease, entries, turns, first, plain, seen)
    rows = _execute(statement.sql, statement.params)
    if not rows:
        return False
    statement.answer(rows[0])
    if others := {name: value for name, value in changes.items() if name not in plain}:
        Run.objects.filter(id=lease.run_id).update(**others)  # fenced: the statement above holds the row's lock
    return True


def in_one_statement(entries: Sequence[Entry], turns: Sequence[NewTurn]) -> bool:
    return connection.vendor == "postgresql" and bool(entries) and len(entries) + len(turns) <= MAX_ROWS


def _position(entries: Sequence[Entry]) -> dict[str, Any]:
    """The run's change by the last of the entries that gave messages to the code."""
    positions = [entry.read_upto for entry in entries if entry.gives_messages and entry.read_upto is not None]
    return {"read_upto": positions[-1]} if positions else {}


def _used(entries: Sequence[Entry]) -> tuple[dict[str, Any], dict[str, bool]]:
    """Usage and known cost of the entries, by column of the run, and the columns that say what is not exact."""
    used = [entry for entry in entries if entry.usage is not None]
    sums: dict[str, Any] = {name: sum([getattr(entry.usage, name) for entry in used]) for name in TOKENS}
    sums["cost"] = sum([entry.cost or 0.0 for entry in used], 0.0)
    is_estimated = any([entry.usage.estimated for entry in used if entry.usage])
    return sums, {"cost_unknown": None in [entry.cost for entry in used], "usage_estimated": is_estimated}


def _number(entries: Sequence[Entry], first: int) -> None:
    for seq, entry in enumerate(entries, first):
        entry.seq = seq


def _by_orm(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn],
    first: int,
    changes: dict[str, Any],
    seen: int | None,
) -> bool:
    """`_by_statement` for other databases, and for many rows."""
    _number(entries, first)
    used, flags = _used(entries)
    if any(entry.is_effect for entry in entries):
        changes = {"crashes": 0, "attempts": 0, **changes}
    changes = {**{name: True for name, is_set in flags.items() if is_set}, **changes}
    held = _held(lease, seen).filter(next_seq=first)
    updated = held.update(
        **{
            "next_seq": F("next_seq") + len(entries),
            "next_turn": F("next_turn") + len(turns),
            **{name: F(name) + amount for name, amount in used.items()},
            "release": conf.RELEASE,
            "schema": SCHEMA,
            **changes,
        }
    )
    if not updated:
        return False
    numbers = Run.objects.values_list("generation", "next_turn", "wake_seq")
    generation, next_turn, wakes = numbers.get(id=lease.run_id)
    lease.woken.add(wakes)
    lease.next_seq = first + len(entries)
    JournalEntry.objects.bulk_create(
        journal_row(
            entry,
            run_id=lease.run_id,
            generation=generation,
            epoch=lease.epoch,
            now=clock.now(),
            start=clock.after(-entry.elapsed_s),
        )
        for entry in entries
    )
    if turns:
        numbered, agent = [*enumerate(turns, next_turn - len(turns))], lease.run.agent
        write_turns(turns[0].session_id, numbered, run_id=lease.run_id, agent=agent, entries=entries)
    outbox.write(outbox.of_entries(lease.run, entries, changes.get("output")))
    return True


def _bound(
    lease: Lease,
    entries: Sequence[Entry],
    turns: Sequence[NewTurn],
    first: int,
    changes: dict[str, Any] | None = None,
    seen: int | None = None,
    hint: Callable[[], None] = outbox.hint_on_commit,
) -> Statement:
    """`hint` is called if events were written with the rows."""
    _number(entries, first)
    used, flags = _used(entries)
    effect = any(entry.is_effect for entry in entries)
    events = outbox.of_entries(lease.run, entries, (changes or {}).get("output"))
    # All are text: parameters of one type keep one prepared statement.
    params: list[str | None] = [
        str(len(entries)),
        str(len(turns)),
        *map(repr, used.values()),
        *("t" if is_set else "f" for is_set in flags.values()),
        *_change_params(changes, effect),
        str(lease.run_id),
        str(lease.epoch),
        lease.owner,
        str(first),
        *([] if seen is None else [str(seen)]),
    ]
    present = clock.fixed()
    now = present.isoformat() if present else None
    for entry in entries:
        params += _entry_params(entry)
    params += [now, str(lease.epoch)]
    if turns:
        params += [str(turns[0].session_id), now]
        for turn in turns:
            row = turn.columns(entries, lease.run.agent)
            params += map(_text, {**row, "role": ROLES[row["role"]]}.values())
    if events:
        params += [now, *outbox.params(events)]

    def answer(row: Sequence[Any]) -> int:
        if events:
            hint()
        lease.woken.add(int(row[0]))
        lease.next_seq = first + len(entries)
        return first

    shape = tuple((name, type(value) is Now) for name, value in (changes or {}).items())
    return Statement(_statement(len(entries), len(turns), shape, seen is not None, len(events)), params, answer)


def _change_params(changes: dict[str, Any] | None, effect: bool) -> list[str | None]:
    """A recorded effect resets crashes and attempts, unless the caller sets them."""
    values = changes or {}
    params: list[str | None] = [] if "release" in values else [conf.RELEASE]
    params += ["0" if effect else "1" for name in ("crashes", "attempts") if name not in values]
    meta: Any = Run._meta
    return params + [as_text(meta.get_field(name), value) for name, value in values.items() if type(value) is not Now]


def _entry_params(entry: Entry) -> list[str | None]:
    return [
        entry.path,
        str(entry.attempt),
        str(number_of(entry.phase, PHASES)),
        str(number_of(entry.kind, KINDS)),
        entry.name,
        stored_text(entry, "request"),
        f"\\x{packed_digests(entry.digests)}" if entry.digests else None,
        stored_text(entry, "result"),
        dumps(entry.error),
        dumps(entry.trace),
        *(None if entry.usage is None else str(getattr(entry.usage, name)) for name in TOKENS),
        None if entry.cost is None else repr(entry.cost),
        None if entry.read_upto is None else str(entry.read_upto),
        repr(entry.elapsed_s),
    ]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return dumps(value) if isinstance(value, list) else str(value)


def _values(typed: str, count: int) -> str:
    """VALUES of `count` rows, numbered from 0 in a column `place`."""
    return ", ".join(f"({number}, {typed})" for number in range(count))


@cache
def _statement(entries: int, turns: int, changes: tuple[tuple[str, bool], ...], unwoken: bool, events: int) -> str:
    since = "AND wake_seq = %s::bigint" if unwoken else ""
    more = [] if "release" in dict(changes) else ["release = %s::text"]
    more += [f"{name} = {name} * %s::int" for name in ("crashes", "attempts") if name not in dict(changes)]
    for name, is_now in changes:
        field: Any = Run._meta.get_field(name)
        more.append(f"{field.column} = " + ("statement_timestamp()" if is_now else f"%s::{cast(field)}"))
    sql = f"""
WITH fence AS (
  UPDATE ravi_run SET
    schema = {SCHEMA}, next_seq = next_seq + %s::int, next_turn = next_turn + %s::int,
    input_tokens = input_tokens + %s::bigint, cached_tokens = cached_tokens + %s::bigint,
    output_tokens = output_tokens + %s::bigint, reasoning_tokens = reasoning_tokens + %s::bigint,
    cost = cost + %s::numeric, cost_unknown = cost_unknown OR %s::boolean,
    usage_estimated = usage_estimated OR %s::boolean,
    {", ".join(more)}
  WHERE id = %s::uuid AND lease_epoch = %s::bigint AND lease_owner = %s::text
    AND next_seq = %s::bigint {since}
  RETURNING id, generation, wake_seq, next_seq - {entries} AS base, next_turn - {turns} AS turn_base
), entries AS (
  INSERT INTO ravi_journalentry (run_id, seq, generation, {_ENTRY}, epoch, started_at, finished_at)
  SELECT fence.id, fence.base + e.place, fence.generation, {_ENTRY}, c.epoch,
         c.now - make_interval(secs => e.elapsed), c.now
  FROM fence, (VALUES {_values(_ENTRY_VALUES, entries)}) AS e(place, {_ENTRY}, elapsed),
       (SELECT coalesce(%s::timestamptz, statement_timestamp()) AS now, %s::int AS epoch) AS c
)"""  # noqa: S608 - built from the constants above
    if turns:
        sql += f""", place AS (
  UPDATE ravi_session SET next_position = next_position + {turns} FROM fence
  WHERE ravi_session.id = %s::uuid RETURNING ravi_session.id, next_position - {turns} AS base
), turns AS (
  INSERT INTO ravi_turn (session_id, run_id, position, index, {_TURN}, created_at)
  SELECT place.id, fence.id, place.base + t.place, fence.turn_base + t.place, {_TURN},
         coalesce(%s::timestamptz, statement_timestamp())
  FROM fence, place, (VALUES {_values(_TURN_VALUES, turns)}) AS t(place, {_TURN})
)"""  # noqa: S608
    if events:
        sql += f", events AS ({outbox.insert(events, 'fence')})"
    return sql + " SELECT wake_seq FROM fence"  # noqa: S608
