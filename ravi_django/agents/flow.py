"""Agents written as a generator of events, and what tools and agents may answer instead of a result.

    from ravi_django.agents.flow import BaseAgentProxy, ChatOutput, TurnEnd, WaitForInput

The names are those of Agentic's `BaseAgentProxy` and its events, on durable rows. See docs/flows.md.
"""

from ravi_django.agents.proxy.agent import BaseAgentProxy
from ravi_django.agents.proxy.events import (
    ChatOutput,
    Prompt,
    ResumeWithInput,
    SubagentCall,
    ToolCall,
    TurnEnd,
    WaitForInput,
)
from ravi_django.kernel.flow import FinishAgentResult, HumanInput, PauseForChildResult, PauseForInputResult

__all__ = [
    "BaseAgentProxy",
    "ChatOutput",
    "FinishAgentResult",
    "HumanInput",
    "PauseForChildResult",
    "PauseForInputResult",
    "Prompt",
    "ResumeWithInput",
    "SubagentCall",
    "ToolCall",
    "TurnEnd",
    "WaitForInput",
]
