"""Instructions that are made when a run begins: computed once, then the same in every replay of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ravi_django.kernel import InvalidInputError, RunContext

Instructions = str | Callable[[RunContext], str | Awaitable[str]]


async def pinned(ctx: RunContext, compute: Callable[[], str | Awaitable[str]], *, name: str = "instructions") -> str:
    """The text that `compute` gives, sync or async; kept with the run under `name`, so that a replay has the same.

    A context that cannot keep it computes it each time. Raises InvalidInputError when it is no text.
    """
    pin = getattr(ctx, "pin", None)
    text: Any = await pin(name, compute) if pin is not None else compute()
    if inspect.isawaitable(text):
        text = await text
    if not isinstance(text, str):
        raise InvalidInputError(f"{name}: instructions are text, not {text!r:.200}", field="system_instructions")
    return text


def shown(instructions: Instructions) -> str:
    """As an agent's spec has them: a text as it is, a function by its name."""
    if isinstance(instructions, str):
        return instructions
    module = getattr(instructions, "__module__", "")
    name = getattr(instructions, "__qualname__", type(instructions).__qualname__)
    return f"<{module}.{name}>"
