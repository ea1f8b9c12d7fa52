"""What a tool call's arguments are made of the model's text."""

from __future__ import annotations

import pytest

from ravi_django.capabilities.llm.collector import parse_arguments
from ravi_django.kernel import INVALID_ARGUMENTS_KEY


def deep(levels: int, one: str = "[]") -> str:
    return '{"tree": ' + one[0] * levels + one[1] * levels + "}"


@pytest.mark.parametrize("levels", [51, 300, 100_000])
@pytest.mark.parametrize("one", ["[]", "{}"])
def test_arguments_nested_too_deep_stay_text(levels: int, one: str) -> None:
    text = deep(levels) if one == "[]" else '{"tree": ' + '{"x":' * levels + "1" + "}" * levels + "}"

    assert parse_arguments(text) == {INVALID_ARGUMENTS_KEY: text}


def test_arguments_as_deep_as_they_may_be_are_read() -> None:
    assert INVALID_ARGUMENTS_KEY not in parse_arguments(deep(49))
