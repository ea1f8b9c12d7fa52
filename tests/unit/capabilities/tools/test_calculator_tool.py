import asyncio
import math
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ravi_django.calls.builtin.calculator import FUNCTIONS, MAX_BITS, calculate
from ravi_django.capabilities.tools import CalculatorTool, CurrentTimeTool
from ravi_django.kernel import Effect, Risk, ToolArgumentsError
from tests.support.cases import case
from tests.support.fake_context import FakeContext


def test_value() -> None:
    for expression, value in [
        ("1 + 1", 2), ("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("100 / 4", 25), ("7 / 2", 3.5), ("7 // 2", 3),
        ("-7 // 2", -4), ("7 % 3", 1), ("2 ^ 10", 1024), ("2 ** 0.5", math.sqrt(2)), ("2 ^ 3 ^ 2", 512),
        ("-2 ^ 2", -4), ("+-+3", -3), ("1_000 + 1e3", 2000), (".5 + 1.", 1.5), ("sqrt(16) + abs(-2)", 6),
        ("round(2.567, 2)", 2.57), ("max(1, 2, 3) - min(4, 5)", -1), ("log(8, 2)", 3), ("cos(pi)", -1),
        ("factorial(20)", math.factorial(20)), ("(-1) ** 99999999999", -1),
        ("3 \N{MULTIPLICATION SIGN} 4 \N{MINUS SIGN} 6 \N{DIVISION SIGN} 2", 9), (" 1\n + 2 ", 3), ("0 ** 0", 1),
    ]:  # fmt: skip
        assert calculate(expression) == pytest.approx(value), expression
    assert calculate("1" + "+1" * 499) == 500


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "empty"), ("   ", "empty"), ("1 / 0", "division by zero"), ("0 ** -1", "division by zero"),
        ("sqrt(-1)", "sqrt is not defined for"),
        ("log(0)", "log is not defined for"), ("(-8) ^ (1/3)", "not a real number"), ("1e308 * 10", "too large"),
        ("1e999", "too large"), ("exp(1000)", "too large"), ("9^9^9^9", "too large"), ("2 ** 9999999", "too large"),
        ("factorial(100000)", "factorial takes"), ("factorial(2.5)", "factorial takes"),
        ("round(1, -999999999)", "round takes"), ("1 +", "not an expression"),
        ("(1", "not an expression"), ("1,000", "write 1000"), ("2pi", r"2\*pi"), ("0x10", "is not a number"),
        ("1or 2", "is not a number"), ("foo(1)", "unknown function 'foo'; known: abs"),
        ("x + 1", "unknown name 'x'; known: pi"), ("sqrt", r"write sqrt\(…\)"),
        ("sqrt(1, 2)", "does not take these 2 arguments"), ("True", "not arithmetic"),
        ("1 if 1 else 2", "not arithmetic"), ("(1).real", "not arithmetic"), ("max(*(1, 2))", "not arithmetic"),
        ("__import__('os')", "is not allowed"), ("[1][0]", "is not allowed"), ("lambda: 1", "is not allowed"),
        ("a := 1", "is not allowed"), ("1 < 2", "is not allowed"), ("²", "is not allowed"), ("1\x00", "is not allowed"),
        ("1" * 1001, "1001 characters, 1000 are allowed"),
    ],
)  # fmt: skip
def test_error_has_words_for_the_model(expression: str, words: str) -> None:
    with pytest.raises(ToolArgumentsError, match=words) as caught:
        calculate(expression)
    assert caught.value.field == "expression"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "expression",
    [
        "-" * 999 + "1", "(" * 500 + "1" + ")" * 500, "abs(" * 199 + "1" + ")" * 199, "**".join("2" * 300),
        "a" + ".a" * 490, "f" + "()" * 490, "2**" * 300 + "1",
    ],
)  # fmt: skip
def test_deep_nesting_is_refused_not_a_crash(expression: str) -> None:
    with pytest.raises(ToolArgumentsError):
        calculate(expression)


numbers = st.integers(0, 10**6).map(str) | st.floats(0, 1e6, allow_nan=False).map(lambda value: f"{value:f}")
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]),
        inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"), inner.map(lambda text: f"-{text}")),
    max_leaves=12
)  # fmt: skip


@given(expressions)
def test_agrees_with_python(expression: str) -> None:
    try:
        expected: Any = eval(expression)
    except ZeroDivisionError:
        with pytest.raises(ToolArgumentsError, match="division by zero"):
            calculate(expression)
        return
    assert calculate(expression) == expected


shapes = st.lists(
    st.sampled_from([*"0123456789", *"+-*/%^().,", "**", "//", "e", "pi", "1e9", *(f"{name}(" for name in FUNCTIONS)]),
    max_size=40,
).map("".join)


@given(shapes | st.text(max_size=60))
@settings(max_examples=400)
def test_anything_gives_a_bounded_number_or_words_in_time(expression: str) -> None:
    began = time.thread_time()
    try:
        value = calculate(expression)
    except ToolArgumentsError as error:
        assert str(error)
    else:
        assert isinstance(value, int | float)
        assert math.isfinite(value) if isinstance(value, float) else value.bit_length() <= MAX_BITS
    assert time.thread_time() - began < 10.0  # CPU seconds of this thread; a quiet machine needs 0.1


@given(st.integers(2, 10**30), st.integers(2, 10**30), st.integers(2, 10**30))
def test_towers_of_powers_never_hang(a: int, b: int, c: int) -> None:
    began = time.thread_time()
    try:
        calculate(f"{a}**{b}**{c}")
    except ToolArgumentsError as error:
        assert "too large" in str(error)
    assert time.thread_time() - began < 10.0  # CPU seconds of this thread; a quiet machine needs 0.1


def test_the_tool() -> None:
    # tool shows the model one argument
    tool = CalculatorTool()
    assert tool.name == "calculator"
    assert list(tool.parameters["properties"]) == tool.parameters["required"] == ["expression"]
    assert (tool.risk, tool.promised_effect) == (Risk.SAFE, Effect.IDEMPOTENT)
    assert asyncio.run(tool.execute(**tool.validate({"expression": "6 * 7"}))) == 42
    with pytest.raises(ToolArgumentsError, match="argument 'expression' is missing; unknown argument 'expr'"):
        CalculatorTool().validate({"expr": "1"})


NOON = datetime(2025, 7, 1, 12, 0, 30, tzinfo=UTC)


def told(**arguments: Any) -> str:
    tool = CurrentTimeTool()
    values = tool.validate(arguments)
    assert tool.context_parameter is not None
    values[tool.context_parameter] = FakeContext(now=NOON)
    return str(asyncio.run(tool.execute(**values)))


def test_tells_the_runs_time_in_the_zone() -> None:
    tool = CurrentTimeTool()
    assert (tool.name, tool.context_parameter) == ("current_time", "ctx")
    assert list(tool.parameters["properties"]) == ["timezone"]
    assert "required" not in tool.parameters
    for arguments, text in [
        ({}, "2025-07-01T12:00:30+00:00 Tuesday"),
        ({"timezone": "Europe/Berlin"}, "2025-07-01T14:00:30+02:00 Tuesday"),
        ({"timezone": "Pacific/Kiritimati"}, "2025-07-02T02:00:30+14:00 Wednesday"),
    ]:
        assert told(**arguments) == text, arguments
    # unknown zone is refused with words for the model
    for zone in ["Atlantis", "", "../../etc/passwd", "/etc/passwd", "Europe", "\x00", "x" * 10_000]:
        with case(zone):
            with pytest.raises(
                ToolArgumentsError, match=r"argument 'timezone': unknown timezone .* Europe/Berlin"
            ) as caught:
                CurrentTimeTool().validate({"timezone": zone})
            assert len(str(caught.value)) < 250
