"""The built-in tools and the means to define tools. Each is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "tool": "ravi_django.agents.tools.function_tool",
    "FunctionTool": "ravi_django.agents.tools.function_tool",
    "Toolbox": "ravi_django.agents.tools.toolbox",
    "Happened": "ravi_django.kernel",
    "NotHappened": "ravi_django.kernel",
    "AskHumanTool": "ravi_django.calls.builtin.ask_human",
    "BoardAddTool": "ravi_django.calls.builtin.board",
    "BoardListTool": "ravi_django.calls.builtin.board",
    "BoardUpdateTool": "ravi_django.calls.builtin.board",
    "CalculatorTool": "ravi_django.calls.builtin.calculator",
    "CurrentTimeTool": "ravi_django.calls.builtin.clock",
    "HttpFetchTool": "ravi_django.calls.builtin.http_fetch",
    "QuerysetTool": "ravi_django.calls.builtin.queryset",
    "ReadResultTool": "ravi_django.calls.builtin.read_result",
    "TaskBoard": "ravi_django.calls.builtin.board",
}

__all__ = [*_EXPORTS]

if TYPE_CHECKING:
    from ravi_django.agents.tools.function_tool import FunctionTool as FunctionTool, tool as tool
    from ravi_django.agents.tools.toolbox import Toolbox as Toolbox
    from ravi_django.calls.builtin.ask_human import AskHumanTool as AskHumanTool
    from ravi_django.calls.builtin.board import (
        BoardAddTool as BoardAddTool,
        BoardListTool as BoardListTool,
        BoardUpdateTool as BoardUpdateTool,
        TaskBoard as TaskBoard,
    )
    from ravi_django.calls.builtin.calculator import CalculatorTool as CalculatorTool
    from ravi_django.calls.builtin.clock import CurrentTimeTool as CurrentTimeTool
    from ravi_django.calls.builtin.http_fetch import HttpFetchTool as HttpFetchTool
    from ravi_django.calls.builtin.queryset import QuerysetTool as QuerysetTool
    from ravi_django.calls.builtin.read_result import ReadResultTool as ReadResultTool
    from ravi_django.kernel import Happened as Happened, NotHappened as NotHappened


def __getattr__(name: str) -> Any:
    try:
        return getattr(import_module(_EXPORTS[name]), name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
