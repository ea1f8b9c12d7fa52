"""Agents and their parts: the loop, tools, memory, budgets. Knows no Django."""

from importlib import import_module
from typing import Any

from ravi_django.agents.agent_context import AgentContext
from ravi_django.agents.approval import ApprovalGate
from ravi_django.agents.budget import ExecutionTracker
from ravi_django.agents.compaction import (
    CompactionPipeline,
    CompactionStrategy,
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    SummarizationCompaction,
    TokenBudgetComposed,
    ToolResultCompaction,
    TruncationCompaction,
)
from ravi_django.agents.context import ContextConfig
from ravi_django.agents.delegate import AgentTool
from ravi_django.agents.factory import (
    create_assistant_agent,
    load_session_memory,
    rebuild_agent,
    rebuild_messages_from_steps,
)
from ravi_django.agents.function_tool import FunctionTool, tool
from ravi_django.agents.history import HistoryProvider, InMemoryHistoryProvider
from ravi_django.agents.hooks import Hooks
from ravi_django.agents.information import InformationAgent
from ravi_django.agents.items import Item
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.agents.orchestrator import OrchestratorAgent, SubAgentConfig
from ravi_django.agents.personal_feed import PersonalFeedAgent
from ravi_django.agents.react import ReActAgent
from ravi_django.agents.result import ResultType
from ravi_django.agents.spec import AgentSpec, validate_spec
from ravi_django.agents.toolbox import Toolbox
from ravi_django.agents.user_proxy import UserProxyAgent
from ravi_django.kernel import (
    AgentContextProtocol,
    AgentMiddleware,
    AgentRunContext,
    ChatContext,
    ChatMiddleware,
    FunctionContext,
    FunctionMiddleware,
    HookCall,
    HookEvent,
    MiddlewareTermination,
)

__all__ = [
    "AgentContext",
    "AgentContextProtocol",
    "AgentMiddleware",
    "AgentRunContext",
    "AgentSpec",
    "AgentTool",
    "ApprovalGate",
    "ChatContext",
    "ChatMiddleware",
    "CompactionPipeline",
    "CompactionStrategy",
    "ContextConfig",
    "ExecutionTracker",
    "FunctionContext",
    "FunctionMiddleware",
    "FunctionTool",
    "HistoryProvider",
    "HookCall",
    "HookEvent",
    "Hooks",
    "InMemoryHistoryProvider",
    "InformationAgent",
    "Item",
    "MiddlewarePipeline",
    "MiddlewareTermination",
    "OrchestratorAgent",
    "PersonalFeedAgent",
    "ReActAgent",
    "ResultType",
    "Runtime",
    "SelectiveToolCallCompaction",
    "SlidingWindowCompaction",
    "SubAgentConfig",
    "SummarizationCompaction",
    "TokenBudgetComposed",
    "ToolResultCompaction",
    "Toolbox",
    "TruncationCompaction",
    "UserProxyAgent",
    "create_assistant_agent",
    "load_session_memory",
    "rebuild_agent",
    "rebuild_messages_from_steps",
    "tool",
    "validate_spec",
]


def __getattr__(name: str) -> Any:
    if name == "Runtime":  # lives above this layer: loaded when it is asked for
        return import_module("ravi_django.runtime").Runtime
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
