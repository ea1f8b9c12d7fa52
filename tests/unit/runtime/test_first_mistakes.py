"""The mistakes of a first day: each is refused at once, and the error names the value and the fix."""

from collections.abc import Callable
from typing import Any

import pytest

from ravi_django import register, schedule, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.kernel import AgentId, InvalidInputError
from ravi_django.testing import ScriptedModel
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)


class Plain:
    id = AgentId("test", "plain")

    async def run(self, ctx: Any, inbox: Any) -> str:
        return "done"


class Sync(Plain):
    def run(self, ctx: Any, inbox: Any) -> str:  # type: ignore[override]
        return "done"


class Short(Plain):
    async def run(self, ctx: Any) -> str:  # type: ignore[override]
        return "done"


def unannotated(order: int, ctx):  # type: ignore[no-untyped-def]
    """Read."""


async def booked(order: int) -> str:
    """Book."""
    return "booked"


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (lambda: register(Plain), "Plain is a class; register an object of it: register(Plain(…))"),
    "a sync run": (
        lambda: register(Sync()),
        "agent test/plain has no async method run (a decorator of one needs functools.wraps): write async def run(",
    ),
    "a run without inbox": (lambda: register(Short()), "cannot take ctx and inbox (too many positional arguments)"),
    "a name as user": (lambda: submit("test/code", "hi", user="ada"), "user must be a user object or None, not 'ada'"),
    "a key as user": (
        lambda: schedule("test/code", "hi", name="daily", cron="0 9 * * *", user=1),
        "user must be a user object or None, not 1",
    ),
    "ctx without type": (lambda: tool(unannotated), "write ctx: RunContext"),
    "transactional and async": (lambda: tool(effect="transactional")(booked), "needs a plain def"),
    "a provider as context": (
        lambda: ReActAgent("x", model=ScriptedModel([]), context=DjangoHistoryProvider()),
        "use ContextConfig(…) around it",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_first_mistake_is_refused_with_its_fix(mistake: str) -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        return "done"

    code(story)
    make, words = MISTAKES[mistake]
    with pytest.raises((InvalidInputError, TypeError, ValueError)) as refused:
        make()
    assert words in str(refused.value)
