"""Agents and their parts: the loop, tools, memory, budgets. Knows no Django."""

from typing import TYPE_CHECKING

from ravi_django.agents.budget import ExecutionTracker as ExecutionTracker
from ravi_django.agents.context import (
    AgentContext as AgentContext,
    CompactionPipeline as CompactionPipeline,
    CompactionStrategy as CompactionStrategy,
    ContextConfig as ContextConfig,
    HistoryProvider as HistoryProvider,
    InMemoryHistoryProvider as InMemoryHistoryProvider,
    SelectiveToolCallCompaction as SelectiveToolCallCompaction,
    SlidingWindowCompaction as SlidingWindowCompaction,
    SummarizationCompaction as SummarizationCompaction,
    TokenBudgetComposed as TokenBudgetComposed,
    ToolResultCompaction as ToolResultCompaction,
    TruncationCompaction as TruncationCompaction,
)
from ravi_django.agents.current import current_meta as current_meta
from ravi_django.agents.memory.agent_context import load_history as load_history, persist_turns as persist_turns
from ravi_django.agents.messages import (
    deliver as deliver,
    final_text as final_text,
    message_to_chat as message_to_chat,
    summarize as summarize,
)
from ravi_django.agents.middleware import Hooks as Hooks, MiddlewarePipeline as MiddlewarePipeline
from ravi_django.agents.react.agent import ReActAgent as ReActAgent
from ravi_django.agents.react.approval import ApprovalGate as ApprovalGate
from ravi_django.agents.react.orchestrator import (
    OrchestratorAgent as OrchestratorAgent,
    SubAgentConfig as SubAgentConfig,
)
from ravi_django.agents.react.result import ResultType as ResultType
from ravi_django.agents.spec.factory import (
    create_assistant_agent as create_assistant_agent,
    load_session_memory as load_session_memory,
    rebuild_agent as rebuild_agent,
    rebuild_messages_from_steps as rebuild_messages_from_steps,
)
from ravi_django.agents.spec.spec import AgentSpec as AgentSpec, validate_spec as validate_spec
from ravi_django.agents.tools.delegate import AgentTool as AgentTool
from ravi_django.agents.tools.function_tool import FunctionTool as FunctionTool, tool as tool
from ravi_django.agents.tools.toolbox import Toolbox as Toolbox
from ravi_django.agents.user_proxy import UserProxyAgent as UserProxyAgent
from ravi_django.kernel import (
    AgentContextProtocol as AgentContextProtocol,
    AgentMiddleware as AgentMiddleware,
    AgentRunContext as AgentRunContext,
    ChatContext as ChatContext,
    ChatMiddleware as ChatMiddleware,
    FunctionContext as FunctionContext,
    FunctionMiddleware as FunctionMiddleware,
    HookCall as HookCall,
    HookEvent as HookEvent,
    MiddlewareTermination as MiddlewareTermination,
)
from ravi_django.wing import public

if TYPE_CHECKING:
    from ravi_django.runtime import Runtime as Runtime
    from ravi_django.wings.feeds.news.information import InformationAgent as InformationAgent
    from ravi_django.wings.feeds.news.items import Item as Item
    from ravi_django.wings.feeds.news.personal_feed import PersonalFeedAgent as PersonalFeedAgent

_LATER = {  # of higher layers: imported on first use
    "runtime": "Runtime",
    "wings.feeds.news.information": "InformationAgent",
    "wings.feeds.news.items": "Item",
    "wings.feeds.news.personal_feed": "PersonalFeedAgent",
}
_OURS = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith("ravi_django.")]
__all__ = [*_LATER.values(), *(name for name in _OURS if name != "public")]
__getattr__ = public(__name__, _LATER)
