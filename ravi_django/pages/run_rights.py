"""Which runs a user may open on the run page, what they may read of a run, and which actions they may take on it now.

Owners have the rights of the REST API. Staff with `ravi.view_run` or `ravi.change_run` are operators: they open the
runs that the admin lists for them, with the journals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ravi_django import access
from ravi_django.kernel import KernelError
from ravi_django.live.streams import hidden
from ravi_django.models import Run, Status
from ravi_django.models.run import RunQuerySet
from ravi_django.people import figures
from ravi_django.runs.catalog import specs
from ravi_django.users import permits


class RunRights:
    """The rights of one user. Calls RAVI["TENANT_OF"] once, and only for an operator."""

    def __init__(self, user: Any) -> None:
        self.user = user
        self._may_change = hidden.sees(user) and permits(user, "ravi.change_run")
        self.is_operator = self._may_change or (hidden.sees(user) and permits(user, "ravi.view_run"))
        self._tenants = figures.tenants_for(user) if self.is_operator else ()  # None: all

    def runs(self) -> RunQuerySet:
        """The runs that the user may open."""
        if self._tenants is None:
            return Run.objects.all()
        return Run.objects.for_user(self.user) | Run.objects.filter(tenant__in=self._tenants)

    def operates_on(self, run: Run) -> bool:
        """Whether the user is an operator of this run."""
        return self.is_operator and (self._tenants is None or run.tenant in self._tenants)

    def changes(self, run: Run) -> bool:
        """Whether the user may act on this run as its operator."""
        return self._may_change and self.operates_on(run)

    def may_act(self, run: Run) -> bool:
        return self.changes(run) or run.is_for(self.user)

    def may_read_journal(self, run: Run) -> bool:
        return self.operates_on(run) or access.allows("may_read_journal", self.user, run)


@dataclass(frozen=True, slots=True)
class RunActions:
    """The services check each again."""

    cancel: bool
    retry: bool  # of a failed run
    release: bool  # the same, of a blocked run
    fork: bool
    signals: list[str] | None  # names to suggest; None: the user may send none


def actions_of(user: Any, run: Run) -> RunActions:
    is_live, runs_agent = not run.is_terminal, may_run(user, run)
    return RunActions(
        cancel=is_live and run.cancel_requested_at is None,
        retry=run.status == Status.FAILED and run.parent_id is None and runs_agent,
        release=run.status == Status.BLOCKED and runs_agent,
        fork=run.next_seq > 1 and (may_fork(user, run) if run.parent_id else runs_agent),
        signals=_signals(user, run) if is_live and runs_agent else None,
    )


def may_run(user: Any, run: Run) -> bool:
    """Whether the user may still run the agent of the run's tree."""
    try:
        access.continue_run(user, run)
    except KernelError:
        return False
    return True


def may_fork(user: Any, run: Run) -> bool:
    """Whether the user may run the agent of this very run, as a fork does: of a child it is another one."""
    try:
        access.find(user, run.agent, None if run.parent_id else run.session_id)
    except KernelError:
        return False
    return True


def _signals(user: Any, run: Run) -> list[str] | None:
    try:
        public = [*getattr(specs.agent_of(run), "public_signals", ())]
    except KernelError:
        public = []
    waits = [wait.get("name", "") for wait in run.waiting_on or () if wait.get("kind") == "signal"]
    names = [name for name in dict.fromkeys([*waits, *public]) if access.allows("may_signal", user, run, name)]
    return names if names or permits(user, "ravi.signal_run") else None
