"""The task board for a model: it lists its tasks, and people watch."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from pydantic import Field

from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel.content import TextBlock
from ravi_django.kernel.contracts import RunContext
from ravi_django.kernel.errors import InvalidInputError, NotFoundError
from ravi_django.kernel.messages import ToolExecutionResult
from ravi_django.kernel.tools import Effect, Tool
from ravi_django.models import BoardTask
from ravi_django.runs.teams import board

Status = Literal["todo", "doing", "done", "blocked"]
Title = Annotated[str, Field(min_length=1, max_length=board.MAX_TITLE)]
Detail = Annotated[str, Field(max_length=board.MAX_DETAIL)]
Number = Annotated[int, Field(ge=1, le=board.MAX_TASKS)]


class TaskBoard:
    """The three tools of a board: `ReActAgent(…, tools=[*TaskBoard().tools])`.

    A change commits with its journal row: a crash neither loses nor doubles a task. Tasks belong to the agent and the
    thread of the conversation; see `runs/teams/board.py` for the limits.
    """

    def __init__(self) -> None:
        self.tools: list[Tool] = [BoardAddTool(), BoardUpdateTool(), BoardListTool()]


class BoardAddTool(FunctionTool):
    """`board_add(title, detail)`."""

    def __init__(self) -> None:
        super().__init__(board_add, effect=Effect.TRANSACTIONAL)


class BoardUpdateTool(FunctionTool):
    """`board_update(number, status, title, detail)`."""

    def __init__(self) -> None:
        super().__init__(board_update, effect=Effect.TRANSACTIONAL)


class BoardListTool(FunctionTool):
    """`board_list(all_agents)`."""

    def __init__(self) -> None:
        super().__init__(board_list)


def board_add(ctx: RunContext, title: Title, detail: Detail = "") -> ToolExecutionResult:
    """Put a task on the task board, where people follow your work. Its number is in the answer.

    Args:
        title: The task in a few words.
        detail: What belongs to it.
    """
    try:
        task = board.add(_board_key(ctx), title, detail)
    except InvalidInputError as error:
        return _refused(error)
    return _changed(task, "added")


def board_update(
    ctx: RunContext,
    number: Number,
    status: Status | None = None,
    title: Title | None = None,
    detail: Detail | None = None,
) -> ToolExecutionResult:
    """Change a task of yours on the task board: say what becomes of it.

    Args:
        number: The task's number.
        status: todo, doing, done, or blocked.
        title: The new title; leave it out to keep the present one.
        detail: The new detail; leave it out to keep the present one.
    """
    try:
        task = board.update(_board_key(ctx), number, status=status, title=title, detail=detail)
    except (InvalidInputError, NotFoundError) as error:
        return _refused(error)
    return _changed(task, "updated")


def board_list(ctx: RunContext, all_agents: bool = False) -> str:
    """List the tasks on the task board.

    Args:
        all_agents: Also those of the other agents in this conversation; else yours alone, with their details.
    """
    tasks = board.tasks_of(_board_key(ctx), all_agents=all_agents)
    if not tasks:
        return "There are no tasks on the board."
    if not all_agents:
        return "\n".join(_line(task) + (f"\n    {task.detail}" if task.detail else "") for task in tasks)
    lines = []
    agent = ""
    for task in tasks:
        if task.agent != agent:
            agent = task.agent
            lines.append(f"{agent}, for {task.parent_agent}:" if task.parent_agent else f"{agent}:")
        lines.append(f"  {_line(task)}")
    return "\n".join(lines)


def _board_key(ctx: RunContext) -> board.BoardKey:
    return board.board_key(cast(RunState, ctx).recorder.lease.run)


def _line(task: BoardTask) -> str:
    return f"{task.number}. [{task.status}] {task.title}"


def _changed(task: BoardTask, what: str) -> ToolExecutionResult:
    return ToolExecutionResult(content=[TextBlock(text=f"Task {what}: {_line(task)}")], board=board.as_json(task))


def _refused(error: Exception) -> ToolExecutionResult:
    return ToolExecutionResult(content=[TextBlock(text=str(error))], is_error=True)
