from __future__ import annotations

from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator

from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.kernel import RunContext

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class CurrentTimeTool(FunctionTool):
    """The run's time for a model: `current_time(timezone)`. It is `ctx.now()`, so a replay returns the same."""

    def __init__(self) -> None:
        super().__init__(current_time)


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, malformed, or a folder of zones
        raise ValueError(
            f"unknown timezone {name[:60]!r}; use a name of the IANA list, such as UTC or Europe/Berlin"
        ) from None
    return name


async def current_time(ctx: RunContext, timezone: Annotated[str, AfterValidator(_known_zone)] = "UTC") -> str:
    """Tell the current date, time and day of the week.

    Args:
        timezone: IANA name of the time zone, such as UTC, Europe/Berlin or America/New_York.
    """
    now = ctx.now().astimezone(ZoneInfo(timezone))
    return f"{now.isoformat(timespec='seconds')} {_DAYS[now.weekday()]}"
