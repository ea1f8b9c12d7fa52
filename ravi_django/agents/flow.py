"""Agents written as a generator of events, and what tools and agents may answer instead of a result.

    from ravi_django.agents.flow import BaseAgentProxy, ChatOutput, TurnEnd, WaitForInput

See docs/howto/flows.md.
"""

from ravi_django.agents.proxy.agent import BaseAgentProxy
from ravi_django.agents.proxy.events import (
    ChatOutput,
    Prompt,
    SubagentCall,
    ToolCall,
    TurnEnd,
    WaitForInput,
)
from ravi_django.kernel.flow import (
    FinishAgentResult,
    PauseForChildResult,
    PauseForInputResult,
)
from ravi_django.kernel.people import HumanInput

ResumeWithInput = HumanInput

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
