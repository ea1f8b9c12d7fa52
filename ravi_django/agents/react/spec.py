"""A ReActAgent as JSON: pinned by its runs and shown in the admin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.windows import SlidingWindowCompaction
from ravi_django.agents.messages import model_name, spec_text
from ravi_django.agents.tools.approvers import approvers_of
from ravi_django.kernel import GenerationOptions, Risk, Tool

DEFAULT_WINDOW = 100  # messages


def spec_of_react(agent: Any, options: GenerationOptions) -> dict[str, Any]:
    """JSON for the admin, and to see that the agent has changed. `options` are those of its model calls."""
    return {
        "class": type(agent).__name__,
        "id": str(agent.id),
        "name": agent.name,
        "model": model_name(agent.model),
        "system_instructions": spec_text(agent.system_instructions),
        "tools": tools_spec(agent.tools),
        "options": options.model_dump(mode="json", exclude={"tools"}, exclude_none=True, exclude_defaults=True),
        "initial_tool_choice": agent.initial_tool_choice,
        "max_iterations": agent.max_iterations,
        "max_parallel_tools": agent.max_parallel_tools,
        "approval_required_risk": agent.approval.required.value,
        "budget": None if agent.budget is None else agent.budget.budget.model_dump(mode="json", exclude_defaults=True),
        "output_topic": None if agent.output_topic is None else str(agent.output_topic),
        "retention": agent.context.retention.value,
        **non_empty(
            fallbacks=[model_name(model) for model in getattr(agent.model, "models", ())[1:]],
            window=_window(agent.context.pipeline),
            approvers=agent.approval.approvers.to_json(),
            client_tools=agent.client_tools,
        ),
        **(
            {}
            if agent.result is None
            else {"result_schema": agent.result.schema, "result_retries": agent.result_retries}
        ),
    }


def non_empty(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def _window(pipeline: Any) -> dict[str, int]:
    """The pipeline as a spec's `window`; empty for the default, and for a pipeline that a spec cannot say."""
    limits: dict[str, int] = {}
    for strategy in getattr(pipeline, "strategies", (pipeline,)):
        match strategy:
            case SlidingWindowCompaction(max_messages=most):
                limits["messages"] = most
            case TokenBudgetComposed(max_tokens=int() as most):
                limits["tokens"] = most
            case _:
                return {}
    return {} if limits == {"messages": DEFAULT_WINDOW} else limits


def tools_spec(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    return [_tool_spec(tool) for tool in tools]


def _tool_spec(tool: Tool) -> dict[str, Any]:
    to = approvers_of(tool)
    return {
        **tool.spec.model_dump(),
        "risk": "by arguments" if tool.compute_risk is not None else Risk(tool.risk).value,
        "effect": tool.promised_effect.value,
        "timeout": tool.timeout,
        "permission": tool.permission,
        **non_empty(approval="" if tool.approval == "by_risk" else tool.approval, approvers=to and to.to_json()),
    }
