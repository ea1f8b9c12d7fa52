"""What a guardrail's check says, and what a trip leaves behind."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from ravi_django.kernel import (
    CancellationError,
    GuardrailError,
    HookEvent,
    InvalidInputError,
    LeaseLostError,
    RunContext,
    TransientError,
)
from ravi_django.kernel.checks import check_text

Check = Callable[..., Any]  # None or False: fine. A text, or True: a trip, with its reason. It may be async

MAX_REASON = 500  # characters
MAX_NAME = 80


class CheckFailed(Exception):
    """The check itself has raised; the message is the reason for a trip."""


async def reason_of(check: Check, *args: Any) -> str | None:
    """Why it trips; None when all is well. A check that fails lets nothing through: that is a trip too."""
    try:
        return await asked(check, *args)
    except CheckFailed as error:
        return str(error)


async def asked(check: Check, *args: Any) -> str | None:
    """`reason_of`, but raises CheckFailed for a check that has raised."""
    try:
        found = check(*args)
        if inspect.isawaitable(found):
            found = await found
    except (CancellationError, LeaseLostError, TransientError):
        raise
    except Exception as error:
        raise CheckFailed(f"the check failed: {type(error).__name__}: {error}"[:MAX_REASON]) from error
    if found is None or found is False:
        return None
    return found[:MAX_REASON] if isinstance(found, str) and found else "no reason was given"


async def tell(ctx: RunContext, name: str, level: str, reason: str, *, place: str) -> None:
    """A journal note, which rides on the next commit, and the hooks."""
    key = f"guardrail.{name}.{short(place)}"
    await ctx.log_once(key, {"guardrail": name, "level": level, "reason": reason})
    await tell_hooks(ctx, name, level, reason)


async def tell_hooks(ctx: RunContext, name: str, level: str, reason: str) -> None:
    hook = getattr(ctx, "hook", None)  # of the runtime's context: not every fake has it
    if hook is not None:
        await hook(HookEvent.GUARDRAIL_TRIP, guardrail=name, level=level, reason=reason)


def error_of(name: str, reason: str) -> GuardrailError:
    return GuardrailError(f"guardrail {name!r} tripped: {reason}", guardrail=name)


def short(place: str) -> str:
    """A place in the run as part of a key, which may not be long."""
    return place if len(place) <= MAX_NAME else hashlib.sha256(place.encode()).hexdigest()[:32]


def checked(check: Check | None, field: str = "check") -> Check:
    if not callable(check):
        raise InvalidInputError(f"{field} must be a function, not {check!r}", field=field)
    return check


def named(name: str | None, *functions: Check | None) -> str:
    """The guardrail's name: its own, or that of the first function."""
    found = name or next((getattr(one, "__name__", type(one).__name__) for one in functions if one), "")
    return check_text("name", found, MAX_NAME)


def one_of(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidInputError(f"on_trip is {' or '.join(map(repr, allowed))}, not {value!r}", field="on_trip")
    return value
