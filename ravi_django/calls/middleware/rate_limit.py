"""UserRateLimit: at most so many runs of a user in a time, counted from the rows of the runs."""

from __future__ import annotations

from datetime import timedelta
from typing import cast
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.engine.lease import pins
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import AgentMiddleware, AgentRunContext, InvalidInputError, RateLimitedError
from ravi_django.kernel.checks import check_seconds, check_whole
from ravi_django.kernel.middleware import CallNext
from ravi_django.models import Run

SCOPES = ("user", "tenant", "site")
MOST_RUNS = 10_000
SKEW_S = 60.0  # between the clocks of run ids and the database: ids limit the scan, rows decide


class UserRateLimit(AgentMiddleware):
    """At most `runs` runs in any `per_s` seconds. One more fails with RateLimitedError, before its agent is called.

    scope: count the runs of the "user", the "tenant" or the whole "site". every_agent: count the runs of all agents,
    not only of this one.

    Counts the rows of root runs in the same scope that were submitted before this one; the decision is recorded. A
    refused run counts as well. A later run does not count an earlier one whose submit is not committed yet. A fork
    counts as submitted when it was made. Not limited: runs without an owner in scope "user", and children.

    Costs one query of at most `runs` rows through the user's index; scopes "tenant" and "site" read the rows of all
    users in the window, by the primary key: keep it short there. Raises InvalidInputError, with the field.
    """

    def __init__(
        self,
        runs: int,
        *,
        per_s: float | timedelta,
        scope: str = "user",
        every_agent: bool = False,
    ) -> None:
        if scope not in SCOPES:
            raise InvalidInputError(f"scope is one of {', '.join(SCOPES)}, not {scope!r}", field="scope")
        self.runs = check_whole("runs", runs, 1, MOST_RUNS)
        self.per_s = check_seconds("per_s", per_s, 366 * 86400)
        self.scope, self.every_agent = scope, every_agent
        agents = "all" if every_agent else "own"
        self.name = f"rate_limit.{scope}.{agents}.{runs}.{self.per_s:g}"

    async def process(self, context: AgentRunContext, call_next: CallNext) -> None:
        ctx = cast("RunState", context.ctx)
        run = ctx.recorder.lease.run
        name = f"{self.name}.{run.id}"  # a fork has its source's rows too
        if self._limits(run) and name not in ctx.pinned:  # once a run

            async def decide() -> float:
                with ctx.waits.busy():
                    return await ctx.recorder.database.call(self._retry_after, run)

            if retry_after := await pins.pin(ctx, name, decide):
                raise self._refused(retry_after)
        await call_next()

    def _limits(self, run: Run) -> bool:
        begins = run.parent_id is None and (run.generation == 0 or run.forked_from is not None)
        return begins and (self.scope != "user" or run.owner_id is not None)

    def _refused(self, retry_after: float) -> RateLimitedError:
        origin = {"user": "of yours", "tenant": "of your organisation", "site": "on this site"}[self.scope]
        return RateLimitedError(
            f"at most {self.runs} runs {origin} in {self.per_s:g} s; try again in {retry_after:.0f} s",
            retry_after=retry_after,
        )

    def _retry_after(self, run: Run) -> float:
        """Seconds, 0 for a run within the limit. On a database thread; from rows that do not change."""
        before = list(self._before(run)[: self.runs].values_list("created_at", flat=True))
        if len(before) < self.runs:
            return 0.0
        oldest = before[self.runs - 2] if self.runs > 1 else run.created_at  # of the runs that fill the window with it
        return round(max(self.per_s - (run.created_at - oldest).total_seconds(), 1.0), 3)

    def _before(self, run: Run) -> QuerySet[Run]:
        """The counted runs, submitted in the window before this one, the latest first."""
        bound = UUID(int=max(0, run.id.int - (int((self.per_s + SKEW_S) * 1000) << 80)))
        rows = Run.objects.filter(parent=None, id__lt=run.id, id__gt=bound)
        rows = rows.filter(created_at__gt=run.created_at - timedelta(seconds=self.per_s))
        if self.scope == "user":
            rows = rows.filter(owner_id=run.owner_id)
        elif self.scope == "tenant":
            rows = rows.filter(tenant=run.tenant)
        if not self.every_agent:
            rows = rows.filter(agent=run.agent)
        return rows.order_by("-id")
