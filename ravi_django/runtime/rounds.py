"""The batches of messages that an agent's code is given: one call of `run` a batch, the same on every replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ravi_django.kernel import Agent, Message
from ravi_django.runtime import interceptors, paths, receiving
from ravi_django.runtime.entries import Entry
from ravi_django.runtime.hops import hops_at_start, hops_in, hops_of
from ravi_django.runtime.state import RunState

if TYPE_CHECKING:
    from ravi_django.runtime.effects import Effects


class Rounds:
    """What had come when the run began is the first batch; what came until the code returned is the next."""

    def __init__(self, effects: Effects, inbox: list[tuple[int, Message]], carried: Message | None = None) -> None:
        self._effects = effects
        self._inbox = effects.inbox = inbox
        self._carried = [] if carried is None else [carried]  # before the first batch, and no part of it
        self._number = 0
        self.hops = 0  # publications behind the first batch

    async def drive(self, agent: Agent, ctx: RunState, scope: paths.Scope) -> Any:
        """Call the agent's code for every batch; returns what the last call returned."""
        while True:
            batch = await self._next()
            ctx.given += batch
            ctx.hops = hops_of(batch)
            if self._number == 1:
                row = self._effects.journal.system("@started")
                ctx.hops = max(ctx.hops, self.hops if row is None else hops_in(row.result))
                batch = [*self._carried, *batch]
            prefix = "" if self._number == 1 else f"r{self._number}."
            paths._scope.set(paths.Scope(prefix, branches=scope.branches))
            returned = await interceptors.run_agent(agent, ctx, batch)
            is_recorded = self._recorded_upto(self._number + 1) is not None
            if not is_recorded and not (self._effects.has_unread and self._effects.stop is None):
                return returned

    @property
    def first_upto(self) -> int | None:
        """Where the first batch ends, when this is the run's first lease."""
        return self._inbox[-1][0] if self._inbox else None

    def begin_behind(self, trail: Any) -> None:
        """Of the row that the generation begins behind: how its first lease comes to know the publications behind."""
        self.hops = hops_at_start([message for _, message in self._inbox], trail)

    async def _next(self) -> list[Message]:
        self._number += 1
        effects = self._effects
        after = effects.inbox_upto or 0
        upto = self._recorded_upto(self._number)
        if upto is None:
            if self._number > 1:
                effects.journal.check_all_asked()
                if effects.inbox_more and (self.first_upto or 0) <= after:
                    with effects.busy():
                        await receiving.read_on(effects, after)
            upto = self.first_upto or 0
            if self._number > 1:
                result = {"inbox_upto": upto}
                effects.note_once(Entry("msg.received", f"@round.{self._number}", result=result))
        effects.inbox_upto = upto or None
        return [message for place, message in self._inbox if after < place <= upto]

    def _recorded_upto(self, number: int) -> int | None:
        row = self._effects.journal.system("@started" if number == 1 else f"@round.{number}")
        found: int | None = None if row is None else row.result.get("inbox_upto")
        return found
