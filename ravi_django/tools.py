"""The built-in tools and the means to define tools. Each is imported on first use."""

from typing import TYPE_CHECKING

from ravi_django.wing import public

_EXPORTS = {
    "agents.tools.function_tool": "tool FunctionTool",
    "agents.tools.toolbox": "Toolbox",
    "kernel": "Happened NotHappened",
    "calls.builtin.ask_human": "AskHumanTool",
    "calls.builtin.board": "BoardAddTool BoardListTool BoardUpdateTool TaskBoard",
    "calls.builtin.calculator": "CalculatorTool",
    "calls.builtin.clock": "CurrentTimeTool",
    "calls.builtin.http_fetch": "HttpFetchTool",
    "calls.builtin.queryset": "QuerysetTool",
    "calls.builtin.read_result": "ReadResultTool",
}

__all__ = [*" ".join(_EXPORTS.values()).split()]

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

__getattr__ = public(__name__, _EXPORTS)
