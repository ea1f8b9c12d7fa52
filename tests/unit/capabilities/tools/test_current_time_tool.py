import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from ravi_django.capabilities.tools import CurrentTimeTool
from ravi_django.kernel import ToolArgumentsError
from tests.support.fake_context import FakeContext

NOON = datetime(2025, 7, 1, 12, 0, 30, tzinfo=UTC)


def told(**arguments: Any) -> str:
    tool = CurrentTimeTool()
    values = tool.validate(arguments)
    assert tool.context_parameter is not None
    values[tool.context_parameter] = FakeContext(now=NOON)
    return str(asyncio.run(tool.execute(**values)))


def test_name_and_schema() -> None:
    tool = CurrentTimeTool()

    assert tool.name == "current_time"
    assert tool.context_parameter == "ctx"
    assert list(tool.parameters["properties"]) == ["timezone"]
    assert "required" not in tool.parameters


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "2025-07-01T12:00:30+00:00 Tuesday"),
        ({"timezone": "Europe/Berlin"}, "2025-07-01T14:00:30+02:00 Tuesday"),
        ({"timezone": "Pacific/Kiritimati"}, "2025-07-02T02:00:30+14:00 Wednesday"),
    ],
)
def test_tells_the_runs_time_in_the_zone(arguments: dict[str, Any], text: str) -> None:
    assert told(**arguments) == text


@pytest.mark.parametrize("zone", ["Atlantis", "", "../../etc/passwd", "/etc/passwd", "Europe", "\x00", "x" * 10_000])
def test_unknown_zone_is_refused_with_words_for_the_model(zone: str) -> None:
    with pytest.raises(ToolArgumentsError, match=r"argument 'timezone': unknown timezone .* Europe/Berlin") as caught:
        CurrentTimeTool().validate({"timezone": zone})

    assert len(str(caught.value)) < 250
