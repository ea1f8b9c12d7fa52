"""What a ReActAgent is, as data: pinned by its runs and shown in the admin."""

from __future__ import annotations

from typing import Any

from ravi_django.agents.instructions import shown
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.windows import SlidingWindowCompaction
from ravi_django.agents.tools.approvers import approvers_of
from ravi_django.kernel import (
    GenerationOptions,
    Risk,
)


def spec_of_react(agent: Any, options: GenerationOptions) -> dict[str, Any]:
    """JSON: enough to show the agent and to see that it has changed. `options` are those of its calls."""
    return {
        "class": type(agent).__name__,
        "id": str(agent.id),
        "name": agent.name,
        "model": getattr(agent.model, "name", type(agent.model).__name__),
        "system_instructions": shown(agent.system_instructions),
        "tools": [{**tool.spec.model_dump(), **_promises(tool)} for tool in agent.tools],
        "options": options.model_dump(mode="json", exclude={"tools"}, exclude_none=True, exclude_defaults=True),
        "initial_tool_choice": agent.initial_tool_choice,
        "max_iterations": agent.max_iterations,
        "max_parallel_tools": agent.max_parallel_tools,
        "approval_required_risk": agent.approval.required.value,
        "budget": None if agent.budget is None else agent.budget.budget.model_dump(mode="json", exclude_defaults=True),
        "output_topic": None if agent.output_topic is None else str(agent.output_topic),
        "retention": agent.context.retention.value,
        **_said(
            {
                "fallbacks": _fallbacks(agent.model),
                "window": _window(agent.context.pipeline),
                "approvers": agent.approval.approvers.to_json(),
            }
        ),
        **(
            {}
            if agent.result is None
            else {"result_schema": agent.result.schema, "result_retries": agent.result_retries}
        ),
    }


def _said(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value}


def _fallbacks(model: Any) -> list[str]:
    """The models that are asked when the first one fails."""
    return [getattr(one, "name", type(one).__name__) for one in getattr(model, "models", ())[1:]]


def _window(pipeline: Any) -> dict[str, int]:
    """How far the model sees, where the pipeline says it as a spec's `window` does."""
    found: dict[str, int] = {}
    for strategy in getattr(pipeline, "strategies", (pipeline,)):
        match strategy:
            case SlidingWindowCompaction(max_messages=most):
                found["messages"] = most
            case TokenBudgetComposed(max_tokens=int() as most):
                found["tokens"] = most
            case _:
                return {}
    return {} if found == {"messages": DEFAULT_WINDOW} else found


def _promises(tool: Any) -> dict[str, Any]:
    own = approvers_of(tool)
    return {
        "risk": "by arguments" if tool.compute_risk is not None else Risk(tool.risk).value,
        "effect": tool.promised_effect.value,
        "timeout": tool.timeout,
        "permission": tool.permission,
        **_said(
            {
                "approval": "" if tool.approval == "by_risk" else tool.approval,
                "approvers": own and own.to_json(),
            }
        ),
    }


DEFAULT_WINDOW = 100  # messages
