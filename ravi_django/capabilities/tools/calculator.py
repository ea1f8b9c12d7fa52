from __future__ import annotations

from ravi_django.agents.function_tool import FunctionTool
from ravi_django.capabilities.tools.arithmetic import calculate


class CalculatorTool(FunctionTool):
    """Arithmetic for a model: `calculator(expression)`. Safe: no `eval`, bounded in size and time."""

    def __init__(self) -> None:
        super().__init__(calculator)


async def calculator(expression: str) -> int | float:
    """Compute the value of an arithmetic expression.

    Args:
        expression: Numbers, + - * / // (whole division) % (remainder) ^ or ** (power), parentheses, the constants pi,
            e and tau, and functions such as sqrt, log, sin, round, min and max. Example: (2 + 3) * 4 / 7
    """
    return calculate(expression)
