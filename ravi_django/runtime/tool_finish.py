"""A tool that hands over: its result says to whom, in words for the model and as a value for the agent's code."""

from __future__ import annotations

from typing import Any

from ravi_django.kernel import (
    AgentId,
    AgentNotFoundError,
    FinishAgentResult,
    InvalidInputError,
    Message,
    ToolExecutionResult,
)
from ravi_django.runtime import specs
from ravi_django.runtime.entries import storable
from ravi_django.runtime.tool_results import error as error_result

FINISH = "finish"  # in a row's result


def checked(result: ToolExecutionResult) -> ToolExecutionResult:
    """The result as every replay gives it; words instead when there is no such agent to hand over to. Reads the
    database: not for the event loop."""
    if result.finish is None:
        return result
    if result.is_error:
        return result.model_copy(update={"finish": None})
    try:
        finish = restored(described(result.finish))
        specs.find(finish.target if isinstance(finish.target, AgentId) else AgentId.parse(finish.target))
    except (InvalidInputError, AgentNotFoundError) as error:
        return error_result(f"it cannot be handed over: {error}")
    return result.model_copy(update={"finish": finish})


def described(finish: FinishAgentResult) -> dict[str, Any]:
    """As the row holds it. Raises InvalidInputError."""
    target, task = finish.target, finish.task
    if not isinstance(target, str | AgentId):
        raise InvalidInputError(f"target is an agent's address, not {target!r}", field="target")
    if task is not None and not isinstance(task, str | Message):
        raise InvalidInputError(f"task is a text or a Message, not {task!r}", field="task")
    told = task.model_dump(mode="json") if isinstance(task, Message) else task
    return {"target": str(target), "task": storable(told)}


def restored(finish: dict[str, Any]) -> FinishAgentResult:
    task = finish["task"]
    return FinishAgentResult(
        AgentId.parse(finish["target"]), Message.model_validate(task) if isinstance(task, dict) else task
    )
