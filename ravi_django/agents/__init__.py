"""Agents and their parts: the loop, tools, memory, budgets. Knows no Django."""

from importlib import import_module
from typing import Any

from ravi_django.agents.budget import ExecutionTracker
from ravi_django.agents.hooks import Hooks
from ravi_django.agents.memory.agent_context import AgentContext, ContextConfig
from ravi_django.agents.memory.compaction.strategy import CompactionPipeline, CompactionStrategy
from ravi_django.agents.memory.compaction.summarization import SummarizationCompaction
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.tool_results import SelectiveToolCallCompaction, ToolResultCompaction
from ravi_django.agents.memory.compaction.windows import SlidingWindowCompaction, TruncationCompaction
from ravi_django.agents.memory.history import HistoryProvider, InMemoryHistoryProvider
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.agents.news.information import InformationAgent
from ravi_django.agents.news.items import Item
from ravi_django.agents.news.personal_feed import PersonalFeedAgent
from ravi_django.agents.react.agent import ReActAgent
from ravi_django.agents.react.approval import ApprovalGate
from ravi_django.agents.react.orchestrator import OrchestratorAgent, SubAgentConfig
from ravi_django.agents.react.result import ResultType
from ravi_django.agents.spec.factory import (
    create_assistant_agent,
    load_session_memory,
    rebuild_agent,
    rebuild_messages_from_steps,
)
from ravi_django.agents.spec.spec import AgentSpec, validate_spec
from ravi_django.agents.tools.delegate import AgentTool
from ravi_django.agents.tools.function_tool import FunctionTool, tool
from ravi_django.agents.tools.toolbox import Toolbox
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
    if name == "Runtime":  # of a higher layer: imported on first use
        return import_module("ravi_django.runtime").Runtime
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
