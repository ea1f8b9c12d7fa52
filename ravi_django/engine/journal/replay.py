"""A run's journal as replay reads it: recorded results by path, and the order they were recorded in."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any

from ravi_django.conf import conf
from ravi_django.engine.journal.entries import SCHEMA, Entry, Recorded, dumps, encode
from ravi_django.kernel import DeterminismError
from ravi_django.kernel.json_values import digest_of

STALL_S = 30.0  # a recorded result that nobody asks for, while others wait behind it, is a change of the code
ARGUMENTS = "arguments"  # in a row's digests


class Journal:
    """Look-ups of one lease. `Recorder.recall` delivers each recorded result once."""

    def __init__(self, rows: Sequence[Recorded], schema: int = SCHEMA, *, stall_s: float | None = None) -> None:
        """`schema`: the form of the rows. Raises DeterminismError for one that this release does not know."""
        if schema > SCHEMA:
            raise DeterminismError(
                f"the journal has the form {schema} of a later release, this one reads up to {SCHEMA}; a worker of "
                "that release can continue the run"
            )
        self._results: dict[str, Recorded] = {}
        self._started: dict[str, Recorded] = {}
        self._paused: dict[str, Recorded] = {}  # the last attempt of a tool call that a pause has closed
        self._kinds = {row.kind for row in rows}
        self._stall_s = STALL_S if stall_s is None else stall_s
        self._set_aside: dict[str, int] = {}  # the last attempt at a path that a retry has superseded
        # What failed the run before a person had it retried: the code is not given it any more.
        retried = [
            row.result["supersedes"] for row in rows if row.kind == "run.retried" and "supersedes" in (row.result or {})
        ]
        superseded = {seq for seqs in retried for seq in seqs}
        self.retries = len(retried)
        # Of a fork: [last seq, id of the run that recorded up to there], oldest first.
        forks = [row.result["origins"] for row in rows if row.kind == "run.forked"]
        self._origins: list[list[Any]] = forks[-1] if forks else []
        places: dict[str, int] = {}  # the result of a retry takes the place of the former one
        for row in rows:  # a later attempt supersedes an earlier one
            if row.seq in superseded:
                self._set_aside[row.path] = row.attempt
                if row.phase == "result":
                    places.setdefault(row.path, row.seq)
            elif row.phase == "result" or row.path.startswith("@"):
                self._results[row.path] = row
            elif row.phase == "paused":
                self._paused[row.path] = row
            else:
                self._started[row.path] = row
        for path, first_seq in places.items():
            if path in self._results:
                self._results[path].seq = first_seq
        # At-most-once effects that were started and have no result.
        self.open_started = {path: row for path, row in self._started.items() if self._is_open(row)}
        self._scopes = {above for rows in (self._results, self._started) for path in rows for above in _above(path)}
        uncertain = tuple(f"{path}/" for path in self.open_started)
        asked = [row for path, row in self._results.items() if not is_unordered(path)]
        asked = [row for row in asked if not self._inside_recorded(row.path)]
        # What a person decides on does not run, or runs again: then it is given what it had recorded.
        asked = [row for row in asked if not row.path.startswith(uncertain)]
        self._order = [row.seq for row in sorted(asked, key=lambda row: row.seq)]
        self._taken: set[int] = set()
        self._next = 0

    def _inside_recorded(self, path: str) -> bool:
        """Below a tool call whose result is recorded, or by an attempt of it that has paused: that code does not run
        again, and nobody asks for the row."""
        above = [prefix[:-1] for prefix in _above(path) if prefix[-1] == "/"]
        if self._paused and any(call in self._paused and not self._is_behind_pause(path, call) for call in above):
            return True
        return any(call in self._results for call in above)

    def _is_behind_pause(self, path: str, call: str) -> bool:
        return path.startswith(f"{call}/~{self._paused[call].attempt}.")

    @property
    def replaying(self) -> bool:
        """Whether recorded results are left."""
        return self._next < len(self._order)

    @property
    def next_seq(self) -> int:
        """Of the next recorded result, while some are left."""
        return self._order[self._next]

    @property
    def patience_s(self) -> float:
        """Until the next result counts as one that nobody asks for: the code may wait for something else first, as long
        as it did in the first execution."""
        waited = 0.0
        if self._next:
            before = self._by_seq(self._order[self._next - 1])
            waited = (self._by_seq(self.next_seq).started_at - before.finished_at).total_seconds()
        return self._stall_s + min(max(waited, 0.0), 100 * self._stall_s)

    def find(self, path: str) -> Recorded | None:
        return self._results.get(path)

    def recorded(self, kind: str) -> list[Recorded]:
        """All results of a kind, those inside of other calls too."""
        return [row for row in self._results.values() if row.kind == kind]

    def has_kind(self, *kinds: str) -> bool:
        return not self._kinds.isdisjoint(kinds)

    def started(self, path: str) -> Recorded | None:
        """A started row without a result: the effect may have happened, or the wait has started."""
        return None if path in self._results else self._started.get(path)

    def begun_and_not_in(self, asked: Collection[str]) -> bool:
        """Whether a wait or an effect was started, has no result, and was not replayed yet."""
        return any(path not in self._results and path not in asked for path in (*self._started, *self._paused))

    def next_attempt(self, path: str) -> int:
        """1, or one more than the attempts that are recorded at the path."""
        known = [rows[path].attempt for rows in (self._started, self._paused) if path in rows]
        return max([*known, self._set_aside.get(path, 0)]) + 1

    def paused(self, path: str) -> Recorded | None:
        """The row of the pause that the call at `path` continues behind."""
        return None if path in self._results else self._paused.get(path)

    def has_below(self, prefix: str) -> bool:
        """Whether anything was started or recorded in this scope, whose prefix ends in a dot or a slash."""
        return prefix in self._scopes

    def _is_open(self, started: Recorded) -> bool:
        """Of a tool's call, that neither a result nor a pause has closed."""
        paused = self._paused.get(started.path)
        is_closed = paused is not None and paused.attempt >= started.attempt
        happened = started.path in self._results or started.result is not None  # see `tools/guarantees.py`
        return started.kind == "tool.call" and not happened and not is_closed

    def number(self, entries: Sequence[Entry]) -> None:
        """Above the attempts that a retry has superseded at their paths."""
        for entry in entries if self._set_aside else ():
            entry.attempt = max(entry.attempt, self._set_aside.get(entry.path, 0) + 1)

    @property
    def origin(self) -> str | None:
        """The run that the present place of the replay was copied from; None where it is this run's own."""
        if not self._origins or not self.replaying:
            return None
        return next((run_id for upto, run_id in self._origins if self.next_seq <= upto), None)

    def is_shared(self, row: Recorded) -> bool:
        """Whether another run has recorded it, which this one was forked from."""
        return bool(self._origins) and row.seq <= self._origins[-1][0]

    def take_now(self, row: Recorded) -> None:
        """Hand out a row whose value needs no waiting for its turn (a recorded time, a log entry)."""
        self._taken.add(row.seq)
        self._advance()

    def pass_over(self, prefix: str) -> None:
        """The rows recorded in this scope, which nobody asks for any more: what came of them is recorded too."""
        rows = [row for path, row in self._results.items() if path.startswith(prefix)]
        self._taken |= {row.seq for row in rows}
        self._advance()

    def check_all_asked(self, waiting: Collection[int]) -> None:
        """At the end of the agent's code: raise DeterminismError when a recorded result was not asked for. `waiting`:
        the seqs of results that wait for their turn."""
        left = [seq for seq in self._order[self._next :] if seq not in self._taken and seq not in waiting]
        if left:
            raise self._missing(left[0], "its end")

    def stalled(self, waiting: Collection[int]) -> DeterminismError:
        """The run is not continued, so its next result is skipped."""
        asked = [row for row in self._results.values() if row.seq in waiting]
        first = min(asked, key=lambda row: row.seq, default=None)
        return self._missing(self.next_seq, "its end" if first is None else f"{first.path!r} (entry {first.seq})")

    def _missing(self, seq: int, before: str) -> DeterminismError:
        row = self._by_seq(seq)
        return DeterminismError(
            f"the journal has {row.kind} {row.name!r} at {row.path!r} (entry {row.seq}), which the code no longer "
            f"asks for before {before}",
            diff={"path": row.path, "recorded": describe(row), "asked": None},
        )

    def _advance(self) -> None:
        while self.replaying and self.next_seq in self._taken:
            self._next += 1

    def _by_seq(self, seq: int) -> Recorded:
        return next(row for row in self._results.values() if row.seq == seq)


def is_unordered(path: str) -> bool:
    """Whether no code has to ask for the row: it is the runtime's own, or of a call in a scope like `@name`, which may
    be there in one release of the code and not in the next."""
    return path.startswith("@") or ".@" in path or "/@" in path


def _above(path: str) -> list[str]:
    """The prefixes of the scopes around a path."""
    return [path[: end + 1] for end, letter in enumerate(path) if letter in "./"]


def _number(text: str) -> str:
    """One form of a number: a database may return 1e22 as a whole number."""
    return str(Decimal(text).normalize() + 0)


_decode = json.JSONDecoder(parse_float=_number, parse_int=_number).decode


def arguments_digest(arguments: Any) -> str | None:
    """16 characters for the arguments of a call, the same for equal JSON; None for None."""
    return None if arguments is None else digest_of(_decode(encode(arguments).decode()))[:16]


def check_identity(row: Recorded, kind: str, name: str, digest: str | None, arguments: Any = None) -> None:
    """The recorded call must be the call asked for: kind, name (but for a model's, see `drift`), and the digest of its
    arguments. `arguments` are for the error.

    Raises DeterminismError with a readable diff.
    """
    is_same_call = row.kind == kind and (row.name == name or kind == "llm.call")
    if is_same_call and (row.digests or {}).get(ARGUMENTS) == digest:
        return
    was, now = describe(row), {"kind": kind, "name": name}
    if arguments is not None:
        now[ARGUMENTS] = json.loads(dumps(arguments) or "null")
    raise DeterminismError(
        f"at {row.path!r} the journal recorded {_as_text(was)} (entry {row.seq}), "
        f"the code now asks for {_as_text(now)}",
        diff={"path": row.path, "seq": row.seq, "recorded": was, "asked": now},
    )


def drift(row: Recorded, name: str, digests: dict[str, Any]) -> list[str]:
    """Which components (model, instructions, tools) differ from those of the recorded model call.

    Raises DeterminismError instead when RAVI["REPLAY"] is "strict".
    """
    recorded, present = {"model": row.name, **(row.digests or {})}, {"model": name, **digests}
    recorded["result_by"] = (row.request or {}).get("result_by")
    compared = ["instructions", "model"]
    if recorded["result_by"] == present.get("result_by"):  # what is known of the provider differs by process
        compared.append("tools")
    changed = [key for key in compared if recorded.get(key) != present.get(key)]
    if changed and conf.REPLAY == "strict":
        raise DeterminismError(
            f"at {row.path!r} {', '.join(changed)} changed since entry {row.seq} was recorded, and REPLAY is strict",
            diff={"path": row.path, "seq": row.seq, "recorded": recorded, "asked": present},
        )
    return changed


def describe(row: Recorded) -> dict[str, Any]:
    """The recorded call for an error. Rows without their arguments have the digest of these."""
    call = {"kind": row.kind, "name": row.name}
    if (digest := (row.digests or {}).get(ARGUMENTS)) is not None:
        call[ARGUMENTS] = (row.request or {}).get("arguments", f"digest {digest}")
    return call


def _as_text(call: dict[str, Any]) -> str:
    arguments = f" with {json.dumps(call[ARGUMENTS], ensure_ascii=False)}" if ARGUMENTS in call else ""
    return f"{call['kind']} {call['name']!r}{arguments}"
