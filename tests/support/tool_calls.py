"""Agents that make one tool call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ravi_django.models import JournalEntry
from tests.support.runs import code, drive, make_run


def calling(name, /, **arguments):
    """An agent's code that makes one call and tells its result."""

    async def story(ctx, inbox):
        result = await ctx.tool(name, **arguments)
        return f"{result.status}: {result.text}"

    return story


def output_of(function, /, **arguments):
    """The output of a run whose agent calls this one tool."""
    code(calling(function.name, **arguments), tools=[function])
    return drive(make_run()).output


def on_the_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same as a coroutine function."""

    @wraps(function)
    async def called(*args, **kwargs):
        return function(*args, **kwargs)

    return called


def phases():
    return list(JournalEntry.objects.filter(kind="tool.call").order_by("seq").values_list("phase", flat=True))
