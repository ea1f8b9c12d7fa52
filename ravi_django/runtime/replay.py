"""A run's journal as replay reads it: recorded results by path, handed out in the order they were recorded."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from ravi_django.conf import conf
from ravi_django.kernel import DeterminismError
from ravi_django.runtime.entries import Recorded

log = logging.getLogger("ravi.replay")

STALL_S = 30.0  # a recorded result that nobody asks for, while others wait behind it, is a change of the code


class Journal:
    """Look-ups of one lease. `take` gives each recorded result once."""

    def __init__(self, rows: Sequence[Recorded]) -> None:
        self._results: dict[str, Recorded] = {}
        self._started: dict[str, Recorded] = {}
        for row in rows:  # a later attempt supersedes an earlier one
            if row.path.startswith("@"):
                continue
            (self._results if row.phase == "result" else self._started)[row.path] = row
        self._order = [row.seq for row in sorted(self._results.values(), key=lambda row: row.seq)]
        self._taken: set[int] = set()
        self._next = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @property
    def replaying(self) -> bool:
        """Whether recorded results are left."""
        return self._next < len(self._order)

    def find(self, path: str) -> Recorded | None:
        return self._results.get(path)

    def started(self, path: str) -> Recorded | None:
        """A started row without a result: the effect may have happened."""
        return None if path in self._results else self._started.get(path)

    def take_now(self, row: Recorded) -> None:
        """Hand out a row whose value needs no waiting for its turn (a recorded time, a log entry)."""
        self._taken.add(row.seq)
        self._advance()

    async def take(self, row: Recorded) -> None:
        """Wait until every result recorded before this one was handed out.

        What raced in the first execution is settled the same way in the replay. Raises DeterminismError when an
        earlier result is not asked for.
        """
        while self._next < len(self._order) and self._order[self._next] < row.seq:
            waiter = self._waiting[row.seq] = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(asyncio.shield(waiter), STALL_S)
            except TimeoutError:
                missing = self._by_seq(self._order[self._next])
                raise DeterminismError(
                    f"the journal has {missing.kind} {missing.name!r} at {missing.path!r} (entry {missing.seq}), "
                    f"which the code no longer asks for before {row.path!r} (entry {row.seq})",
                    diff={"path": missing.path, "recorded": describe(missing), "asked": None},
                ) from None
        self.take_now(row)

    def _advance(self) -> None:
        while self._next < len(self._order) and self._order[self._next] in self._taken:
            self._next += 1
        if self._next < len(self._order):
            waiter = self._waiting.pop(self._order[self._next], None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _by_seq(self, seq: int) -> Recorded:
        return next(row for row in self._results.values() if row.seq == seq)


def check_identity(row: Recorded, kind: str, name: str, arguments: Any) -> None:
    """The recorded call must be the call asked for: kind, model or tool name, and a tool's arguments.

    Raises DeterminismError with a readable diff.
    """
    recorded = (row.request or {}).get("arguments") if row.kind == "tool.call" else None
    asked = json.loads(to_json(arguments)) if kind == "tool.call" else None
    if (row.kind, row.name, recorded) == (kind, name, asked):
        return
    was = describe(row)
    now = {"kind": kind, "name": name, **({"arguments": asked} if kind == "tool.call" else {})}
    raise DeterminismError(
        f"at {row.path!r} the journal recorded {_words(was)} (entry {row.seq}), the code now asks for {_words(now)}",
        diff={"path": row.path, "seq": row.seq, "recorded": was, "asked": now},
    )


def drift(row: Recorded, digests: dict[str, Any] | None) -> list[str]:
    """Which components (instructions, tools, options, view) are no longer what the recorded call was made with.

    Raises DeterminismError instead when RAVI["REPLAY"] is "strict".
    """
    recorded, present = row.digests or {}, digests or {}
    changed = sorted(key for key in recorded.keys() | present.keys() if recorded.get(key) != present.get(key))
    if changed and conf.REPLAY == "strict":
        raise DeterminismError(
            f"at {row.path!r} {', '.join(changed)} changed since entry {row.seq} was recorded, and REPLAY is strict",
            diff={"path": row.path, "seq": row.seq, "recorded": recorded, "asked": present},
        )
    return changed


def describe(row: Recorded) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": row.kind, "name": row.name}
    if row.kind == "tool.call":
        found["arguments"] = (row.request or {}).get("arguments")
    return found


def _words(call: dict[str, Any]) -> str:
    arguments = f" with {json.dumps(call['arguments'], ensure_ascii=False)}" if "arguments" in call else ""
    return f"{call['kind']} {call['name']!r}{arguments}"
