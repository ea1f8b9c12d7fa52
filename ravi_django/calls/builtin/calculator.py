"""Arithmetic on text without `eval`. The size of each step is checked before it is computed, so it cannot hang."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.kernel import ToolArgumentsError


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


MAX_LENGTH = 1000  # characters of an expression
MAX_BITS = 3400  # of an integer: about 1,000 digits
MAX_DEPTH = 100  # of nesting
MAX_FACTORIAL = 450
MAX_ROUND_DIGITS = 100

Number = int | float

CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}

_SIGNS = str.maketrans({"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-", "^": "**"})
_ALLOWED = re.compile(r"[0-9A-Za-z_+\-*/%().,\s]*\Z")
_GLUED = re.compile(r"(?<![\w.])((?>(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][+-]?\d+)?))([A-Za-z]\w*)")


def calculate(expression: str) -> Number:
    """The value of an expression. Raises ToolArgumentsError."""
    text = _readable(expression)
    try:
        value = _Evaluator(text).value(_parse(text))
    except ZeroDivisionError:
        raise _error("division by zero") from None
    except OverflowError:
        raise _error("the result is too large") from None
    # Show 6 / 2 as 3. Above 2**53 a float is not an exact integer.
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _error(message: str) -> ToolArgumentsError:
    return ToolArgumentsError(message, field="expression")


def _readable(expression: str) -> str:
    """The expression with Python's operators. Refuses other characters before parsing."""
    text = " ".join(expression.split()).translate(_SIGNS)
    if not text:
        raise _error("the expression is empty")
    if len(expression) > MAX_LENGTH:
        raise _error(f"the expression has {len(expression)} characters, {MAX_LENGTH} are allowed")
    if not _ALLOWED.match(text):
        strange = next(char for char in text if not _ALLOWED.match(char))
        raise _error(f"{strange!r} is not allowed in an expression of numbers, + - * / // % ^ and ( )")
    if glued := _GLUED.search(text):
        raise _error(f"{glued[0]!r} is not a number; write a product as {glued[1]}*{glued[2]}")
    return text


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _error(f"{text[:100]!r} is not an expression") from None


class _Evaluator:
    """Evaluates the syntax tree of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0

    def value(self, node: ast.expr) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _error(f"the expression is nested more than {MAX_DEPTH} deep")
        try:
            return _bounded(self._value(node))
        finally:
            self._depth -= 1

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number
            case ast.BinOp(op=op) if type(op) in _BINARY:
                return self._chain(node)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return _UNARY[type(op)](self.value(operand))
            case ast.Name(id=name):
                return _constant(name)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(name, args)
            case ast.Tuple():
                raise _error("a comma separates the arguments of a function; write 1000, not 1,000")
        raise _error(f"{self._text[node.col_offset : node.end_col_offset][:100]!r} is not arithmetic")

    def _chain(self, node: ast.expr) -> Number:
        """`a + b - c …` nests to the left. A loop evaluates it, so a long sum does not count as deep nesting."""
        steps: list[tuple[Callable[[Any, Any], Any], ast.expr]] = []
        while isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            steps.append((_BINARY[type(node.op)], node.right))
            node = node.left
        value = self.value(node)
        for operation, right in reversed(steps):
            value = _bounded(operation(value, self.value(right)))
        return value

    def _call(self, name: str, args: list[ast.expr]) -> Any:
        function = FUNCTIONS.get(name)
        if function is None:
            raise _error(f"unknown function {name!r}; known: {', '.join(FUNCTIONS)}")
        try:
            return function(*map(self.value, args))
        except TypeError:
            raise _error(f"{name} does not take these {len(args)} arguments") from None
        except ToolArgumentsError:
            raise
        except ValueError:
            raise _error(f"{name} is not defined for these arguments") from None


def _bounded(value: Any) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise _too_large()
        return value
    if not isinstance(value, float) or math.isnan(value):
        raise _error("the result is not a real number")
    if math.isinf(value):
        raise _too_large()
    return value


def _too_large() -> ToolArgumentsError:
    return _error("the result is too large: whole numbers up to 1,000 digits, others up to 1e308")


def _constant(name: str) -> float:
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name in FUNCTIONS:
        raise _error(f"{name} is a function; write {name}(…)")
    raise _error(f"unknown name {name!r}; known: {', '.join([*CONSTANTS, *FUNCTIONS])}")


def _power(base: Number, exponent: Number) -> Any:
    """Estimate the size of an integer power first: `9**9**9` would take years."""
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and exponent > 0 and abs(base) > 1 and (int(abs(base)).bit_length() - 1) * exponent > MAX_BITS:
        raise _too_large()
    return base**exponent


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= MAX_FACTORIAL:
        raise _error(f"factorial takes whole numbers from 0 to {MAX_FACTORIAL}")
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MAX_ROUND_DIGITS:
        raise _error(f"round takes a whole number of digits up to {MAX_ROUND_DIGITS}")
    return round(number, digits)


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}

_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}

_OF_MATH = (
    "floor", "ceil", "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "degrees",
    "radians",
)  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": _round,
    "min": lambda *numbers: min(numbers),
    "max": lambda *numbers: max(numbers),
    **{name: getattr(math, name) for name in _OF_MATH},
    "factorial": _factorial,
}
