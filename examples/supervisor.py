"""Supervisor: a run of weeks that starts a child each day, starts it again when it fails, and stops when it is told to.

    python -m examples.supervisor

Between two days it is a row with a time in it. After each week it begins anew with an empty journal
(`ctx.continue_as_new`), so that the hundredth day replays no more than the first one. `ctx.state` has the reports so
far. `signal(run, "stop")` of `ravi_django` ends it. From the command line a day lasts half a second.
See `running` for how to start it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from examples.running import play
from ravi_django.agents import ReActAgent
from ravi_django.kernel import Agent, AgentId, ChatModel, Message, RunContext

WEEK = 7
TRIES = 2


@dataclass
class Supervisor:
    id: ClassVar = AgentId("example", "supervisor")
    days: int = 28
    day: timedelta = timedelta(days=1)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        log: list[str] = ctx.state or []
        for today in range(len(log), min(len(log) + WEEK, self.days)):
            log.append(await self._report(ctx, today))
            if await ctx.sleep_until_signal("stop", until=self.day) is not None:
                return "\n".join([*log, "stopped"])
        if len(log) < self.days:
            await ctx.continue_as_new(log)  # never returns
        return "\n".join(log)

    async def _report(self, ctx: RunContext, today: int) -> str:
        """A day's report. A try that is still at work after its time is left to itself: it has not failed."""
        for _ in range(TRIES):
            reporter = await ctx.spawn("react/reporter", f"Report on day {today}.")
            outcome = await ctx.join(reporter, timeout=self.day / 2)  # a late answer to an ask would be a message
            if outcome.kind == "replied":
                return f"day {today}: {outcome.text}"
            if outcome.kind == "timed_out":
                break
        return f"day {today}: no report ({outcome.kind})"


def supervisor(model: ChatModel, **options: Any) -> list[Agent]:
    return [Supervisor(**options), ReActAgent("reporter", model=model, system_instructions="One sentence.")]


if __name__ == "__main__":
    from ravi_django.integrations.llm import model_from_env

    play(supervisor(model_from_env(), days=8, day=timedelta(seconds=0.5)), "Begin.")
