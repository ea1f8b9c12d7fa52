"""Which actions a user may take on a run now: for the buttons of its page, and of its page in the admin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ravi_django import access
from ravi_django.kernel import KernelError
from ravi_django.kernel.json_values import read_json
from ravi_django.models import Run, Status
from ravi_django.runtime.catalog import specs
from ravi_django.users import permits


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


def payload_of(text: str) -> Any:
    """What a person typed as the payload of a signal: JSON, else a text; None for nothing."""
    try:
        return read_json(text) if text.strip() else None
    except ValueError:
        return text
