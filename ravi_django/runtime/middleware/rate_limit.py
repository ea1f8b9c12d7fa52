"""UserRateLimit: at most so many runs of a user in a time, counted from the rows of the runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.kernel import AgentMiddleware, AgentRunContext, InvalidInputError, RateLimitedError
from ravi_django.kernel.checks import check_seconds, check_whole
from ravi_django.kernel.middleware import CallNext
from ravi_django.models import Run
from ravi_django.runtime.lease import pins, waits
from ravi_django.runtime.lease.state import RunState

SCOPES = ("user", "tenant", "site")
MOST_RUNS = 10_000
SKEW_S = 60.0  # between the clocks of run ids and the database: ids limit the scan, rows decide
_LOOK_BACK = 10_000  # earlier runs that the start of a waiting one is computed from

Decision = dict[str, Any]  # {"passes": bool, "until": ISO time or None, "retry_after": seconds}


class UserRateLimit(AgentMiddleware):
    """At most `runs` runs in any `per_s` seconds.

    on_limit: "refuse" ends the run with RateLimitedError, before the agent is called; "wait" suspends it until there is
    room, in the order of the submits. A run that would wait longer than `max_wait_s` is refused. scope: count the runs
    of the "user", the "tenant" or the whole "site". every_agent: count the runs of all agents, not only of this one.

    Counts the rows of root runs in the same scope that were submitted before this one; the decision is recorded. With
    "refuse" a refused run counts as well. A later run does not count an earlier one whose submit is not committed yet.
    A fork counts as submitted when it was made; with "wait", a fork that would have to wait is refused. Not limited:
    runs without an owner in scope "user", and children.

    Costs one query of at most `runs` rows through the user's index; scopes "tenant" and "site" read the rows of all
    users in the window, by the primary key: keep it short there. Raises InvalidInputError, with the field.
    """

    def __init__(
        self,
        runs: int,
        *,
        per_s: float | timedelta,
        on_limit: str = "refuse",
        scope: str = "user",
        every_agent: bool = False,
        max_wait_s: float | timedelta = 3600.0,
    ) -> None:
        for field, choice, allowed in (("on_limit", on_limit, ("refuse", "wait")), ("scope", scope, SCOPES)):
            if choice not in allowed:
                raise InvalidInputError(f"{field} is one of {', '.join(allowed)}, not {choice!r}", field=field)
        self.runs = check_whole("runs", runs, 1, MOST_RUNS)
        self.per_s = check_seconds("per_s", per_s, 366 * 86400)
        self.max_wait_s = check_seconds("max_wait_s", max_wait_s, 366 * 86400)
        self.on_limit, self.scope, self.every_agent = on_limit, scope, every_agent
        agents = "all" if every_agent else "own"
        self._scope = f"rate_limit_{scope}_{agents}_{on_limit}_{runs}_{per_s:g}".replace(".", "_")
        self.name = f"rate_limit.{scope}.{agents}.{on_limit}.{runs}.{per_s:g}"

    async def process(self, context: AgentRunContext, call_next: CallNext) -> None:
        ctx = cast("RunState", context.ctx)
        run = ctx.effects.lease.run
        name = f"{self.name}.{run.id}"  # a fork has its source's rows too
        if self._limits(run) and name not in ctx.pinned:  # once a run
            if run.forked_from is not None:
                ctx.effects.journal.pass_over(ctx.here().peek(self._scope))

            async def decide() -> Decision:
                with ctx.effects.busy():
                    return await ctx.effects.database.call(self._decide, run)

            decision = await pins.pin(ctx, name, decide)
            if not decision["passes"]:
                raise self._refused(decision["retry_after"])
            if decision["until"] is not None:
                with ctx.scope(self._scope):
                    await waits.sleep_until(ctx, datetime.fromisoformat(decision["until"]))
        await call_next()

    def _limits(self, run: Run) -> bool:
        begins = run.parent_id is None and (run.generation == 0 or run.forked_from is not None)
        return begins and (self.scope != "user" or run.owner_id is not None)

    def _refused(self, retry_after: float) -> RateLimitedError:
        whose = {"user": "of yours", "tenant": "of your organisation", "site": "on this site"}[self.scope]
        return RateLimitedError(
            f"at most {self.runs} runs {whose} in {self.per_s:g} s; try again in {retry_after:.0f} s",
            retry_after=retry_after,
        )

    def _decide(self, run: Run) -> Decision:
        """On a database thread; from rows that do not change."""
        if self.on_limit == "wait":
            return self._wait(run)
        before = list(self._before(run, self.per_s)[: self.runs].values_list("created_at", flat=True))
        if len(before) < self.runs:
            return _passes()
        oldest = before[self.runs - 2] if self.runs > 1 else run.created_at  # of the runs that fill the window with it
        return _refuses(self.per_s - (run.created_at - oldest).total_seconds())

    def _before(self, run: Run, window_s: float) -> QuerySet[Run]:
        """The counted runs, submitted in the seconds before this one, the latest first."""
        bound = UUID(int=max(0, run.id.int - (int((window_s + SKEW_S) * 1000) << 80)))
        rows = Run.objects.filter(parent=None, id__lt=run.id, id__gt=bound)
        rows = rows.filter(created_at__gt=run.created_at - timedelta(seconds=window_s))
        if self.scope == "user":
            rows = rows.filter(owner_id=run.owner_id)
        elif self.scope == "tenant":
            rows = rows.filter(tenant=run.tenant)
        if not self.every_agent:
            rows = rows.filter(agent=run.agent)
        return rows.order_by("-id")

    def _wait(self, run: Run) -> Decision:
        """Each run starts when it is submitted, but at least `per_s` after the one that is `runs` before it."""
        rows = self._before(run, self.per_s + self.max_wait_s)[:_LOOK_BACK]
        earlier = list(rows.values_list("created_at", flat=True))[::-1]
        starts: list[datetime] = []
        wait_s = 0.0
        for created in (*earlier, run.created_at):
            room = starts[-self.runs] + timedelta(seconds=self.per_s) if len(starts) >= self.runs else created
            wait_s = max(0.0, (room - created).total_seconds())
            if wait_s <= self.max_wait_s:
                starts.append(max(created, room))
        if not wait_s:
            return _passes()
        if run.forked_from is not None:  # it must replay its past, and cannot sleep first
            return _refuses(wait_s)
        return _passes(until=starts[-1]) if wait_s <= self.max_wait_s else _refuses(wait_s - self.max_wait_s)


def _passes(until: datetime | None = None) -> Decision:
    return {"passes": True, "until": until.isoformat() if until else None, "retry_after": 0.0}


def _refuses(retry_after: float) -> Decision:
    return {"passes": False, "until": None, "retry_after": round(max(retry_after, 1.0), 3)}
