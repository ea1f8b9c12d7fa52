"""Lifecycle hooks: they see events and cannot change anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ravi_django.kernel.identity import AgentId


class HookEvent(StrEnum):
    RUN_START = "run_start"
    RUN_END = "run_end"  # status, output, error
    STEP_START = "step_start"  # one iteration of the loop
    STEP_END = "step_end"
    LLM_START = "llm_start"  # model, messages (how many), path
    LLM_END = "llm_end"  # model, usage, cost, error, path
    TOOL_START = "tool_start"  # tool, arguments, path
    TOOL_END = "tool_end"  # tool, is_error, path
    FLOW_START = "flow_start"  # the handling of one message
    FLOW_END = "flow_end"
    HANDOFF = "handoff"  # target, run: a child was spawned
    GUARDRAIL_TRIP = "guardrail_trip"  # guardrail, reason


@dataclass(frozen=True, slots=True)
class HookCall:
    """The argument of a hook. The hook is called when the event happens, not when a replay passes it.

    Starts and ends come in pairs, unless a lease ends in between: after a crash, or a transient failure of a tool, the
    start comes again. A model call that is retried later ends with its error and starts again. A tool that waits (for a
    person, a timer, a child) starts once and ends when it has a result, perhaps in another process. A run starts once,
    `continue_as_new` included. It ends when its own code led to a final status: a run that is cancelled while it waits
    has no end, and a retried run has two.
    """

    event: HookEvent
    run_id: str
    session_id: str
    agent_id: AgentId
    data: Mapping[str, Any] = field(default_factory=dict)  # by the event, see HookEvent
