"""Lifecycle hooks: told what happens, able to change nothing."""

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
    """What a hook is given. It comes when the thing happens, not when a replay passes it.

    Starts and ends come in pairs, but for what a lease's end cuts short: after a crash, or a transient failure of a
    tool, the start comes once more. A model call that is tried again later ends with its error and starts anew. A tool
    that waits (for a person, a timer, a child) starts once and ends when it is through, perhaps in another process. A
    run starts once, whatever becomes of it in between, `continue_as_new` included; it ends when its status is a final
    one that its own code led to: a run that is cancelled while it waits has no end, and one that is retried has two.
    """

    event: HookEvent
    run_id: str
    session_id: str
    agent_id: AgentId
    data: Mapping[str, Any] = field(default_factory=dict)  # by the event, see HookEvent
