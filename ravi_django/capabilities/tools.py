"""Tools that need no database. `ravi_django.tools` has all tools."""

from ravi_django.agents.tools.function_tool import FunctionTool, tool
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.calls.builtin.calculator import CalculatorTool
from ravi_django.calls.builtin.clock import CurrentTimeTool
from ravi_django.calls.builtin.http_fetch import HttpFetchTool

__all__ = ["CalculatorTool", "CurrentTimeTool", "FunctionTool", "HttpFetchTool", "Toolbox", "tool"]
