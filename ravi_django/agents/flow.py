"""Agents written as a generator of events, and what tools and agents may answer instead of a result.

    from ravi_django.agents.flow import BaseAgentProxy, ChatOutput, TurnEnd, WaitForInput

See docs/flows.md.
"""

from ravi_django.agents.proxy.agent import BaseAgentProxy as BaseAgentProxy
from ravi_django.agents.proxy.events import (
    ChatOutput as ChatOutput,
    Prompt as Prompt,
    SubagentCall as SubagentCall,
    ToolCall as ToolCall,
    TurnEnd as TurnEnd,
    WaitForInput as WaitForInput,
)
from ravi_django.kernel.flow import (
    FinishAgentResult as FinishAgentResult,
    PauseForChildResult as PauseForChildResult,
    PauseForInputResult as PauseForInputResult,
)
from ravi_django.kernel.people import HumanInput as HumanInput

ResumeWithInput = HumanInput
