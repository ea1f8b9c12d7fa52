"""Durable LLM agents for Django. The names that a site uses are here; they load what they need when first used.

`docs/….md`, as named in docstrings and messages, is a file of this package.
"""

from typing import TYPE_CHECKING

from ravi_django.wing import public

__version__ = "0.1.0"

_NAMES = {
    "agents": "ReActAgent OrchestratorAgent SubAgentConfig AgentTool UserProxyAgent InformationAgent PersonalFeedAgent "
    "ContextConfig create_assistant_agent",
    "agents.tools.function_tool": "tool",
    "wings.feeds.fetching.adapter": "register_source_adapter",
    "integrations.llm": "LLMFactory",
    "kernel": "Agent AgentId TopicId RunContext AskOutcome Message ChatMessage TextBlock ImageBlock DocumentBlock "
    "AudioBlock VideoBlock DataBlock ToolUseBlock GenerationOptions RetryPolicy Priority ExecutionBudget SpawnBudget "
    "HumanInput ApprovalDecision ToolExecutionResult PauseForInputResult PauseForChildResult FinishAgentResult",
    "runs.catalog.registry": "register register_tool",
    "runs.catalog.specs": "save_spec",
    "engine.worker.run_sync": "run_sync",
    "runs.lifecycle.submit": "submit asubmit",
    "people.answers": "answer aanswer",
    "runs.signals": "signal asignal",
    "wings.feeds.schedules.schedules": "schedule",
    "wings.feeds.social.follows": "follow unfollow",
    "wings.feeds.social.publications": "emit",
}
__all__ = ["__version__", *" ".join(_NAMES.values()).split()]
__getattr__ = public(__name__, _NAMES)

if TYPE_CHECKING:
    from ravi_django.agents import (
        AgentTool as AgentTool,
        ContextConfig as ContextConfig,
        InformationAgent as InformationAgent,
        OrchestratorAgent as OrchestratorAgent,
        PersonalFeedAgent as PersonalFeedAgent,
        ReActAgent as ReActAgent,
        SubAgentConfig as SubAgentConfig,
        UserProxyAgent as UserProxyAgent,
        create_assistant_agent as create_assistant_agent,
    )
    from ravi_django.agents.tools.function_tool import tool as tool
    from ravi_django.engine.worker.run_sync import run_sync as run_sync
    from ravi_django.integrations.llm import LLMFactory as LLMFactory
    from ravi_django.kernel import (
        Agent as Agent,
        AgentId as AgentId,
        ApprovalDecision as ApprovalDecision,
        AskOutcome as AskOutcome,
        AudioBlock as AudioBlock,
        ChatMessage as ChatMessage,
        DataBlock as DataBlock,
        DocumentBlock as DocumentBlock,
        ExecutionBudget as ExecutionBudget,
        FinishAgentResult as FinishAgentResult,
        GenerationOptions as GenerationOptions,
        HumanInput as HumanInput,
        ImageBlock as ImageBlock,
        Message as Message,
        PauseForChildResult as PauseForChildResult,
        PauseForInputResult as PauseForInputResult,
        Priority as Priority,
        RetryPolicy as RetryPolicy,
        RunContext as RunContext,
        SpawnBudget as SpawnBudget,
        TextBlock as TextBlock,
        ToolExecutionResult as ToolExecutionResult,
        ToolUseBlock as ToolUseBlock,
        TopicId as TopicId,
        VideoBlock as VideoBlock,
    )
    from ravi_django.people.answers import aanswer as aanswer, answer as answer
    from ravi_django.runs.catalog.registry import register as register, register_tool as register_tool
    from ravi_django.runs.catalog.specs import save_spec as save_spec
    from ravi_django.runs.lifecycle.submit import asubmit as asubmit, submit as submit
    from ravi_django.runs.signals import asignal as asignal, signal as signal
    from ravi_django.wings.feeds.fetching.adapter import register_source_adapter as register_source_adapter
    from ravi_django.wings.feeds.schedules.schedules import schedule as schedule
    from ravi_django.wings.feeds.social.follows import follow as follow, unfollow as unfollow
    from ravi_django.wings.feeds.social.publications import emit as emit
