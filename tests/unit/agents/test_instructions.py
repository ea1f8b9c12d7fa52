"""Instructions made when a run begins, and the hooks around its messages and steps."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.kernel import HookCall, HookEvent, InvalidInputError, LeaseLostError
from tests.support.fake_context import FakeContext, call
from tests.support.react import TOOLS, agent, ask, run

pytestmark = pytest.mark.asyncio


async def by_user(ctx: Any) -> str:
    return f"You serve {ctx.run_id}."


@pytest.mark.parametrize("made", [by_user, lambda ctx: f"You serve {ctx.run_id}."])
async def test_a_function_makes_the_instructions_of_a_run(made: Any) -> None:
    helper = agent(system_instructions=made)
    first, second = FakeContext(run_id="r1"), FakeContext(run_id="r2")

    await run(helper, first)
    await run(helper, second)

    assert [ctx.views[0][0].text for ctx in (first, second)] == ["You serve r1.", "You serve r2."]
    assert first.views[0][0].role == "system"


async def test_it_is_called_once_a_run() -> None:
    calls: list[Any] = []
    ctx = FakeContext([call("add", a=1, b=1), "one", "two"], TOOLS)

    await run(agent(system_instructions=lambda ctx: calls.append(ctx) or "Be brief."), ctx, ask(), ask())

    assert calls == [ctx]


async def test_no_text_is_no_system_message_and_anything_else_is_refused() -> None:
    ctx = FakeContext()
    await run(agent(system_instructions=lambda ctx: ""), ctx)
    assert [turn.role for turn in ctx.views[0]] == ["user"]

    with pytest.raises(InvalidInputError, match="react/helper: instructions are text, not 7"):
        await run(agent(system_instructions=lambda ctx: 7), FakeContext())


async def test_the_spec_names_the_function() -> None:
    assert agent(system_instructions=by_user).spec()["system_instructions"].endswith("test_instructions.by_user>")


class Told(FakeContext):
    """With the hooks of a context that has them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def hook(self, event: HookEvent, **data: Any) -> None:
        self.told.append((event.value, data))


def listen(_: HookCall) -> None: ...


async def test_hooks_are_told_of_messages_and_steps() -> None:
    ctx = Told([call("add", a=1, b=1), "done"], TOOLS)
    asked = ask()

    await run(agent(hooks={HookEvent.STEP_START: listen}), ctx, asked)

    assert ctx.told == [
        ("flow_start", {"message": asked.id}),
        ("step_start", {"step": 1}),
        ("step_end", {"step": 1, "tool_calls": 1}),
        ("step_start", {"step": 2}),
        ("step_end", {"step": 2, "tool_calls": 0}),
        ("flow_end", {"message": asked.id, "error": None}),
    ]


@pytest.mark.parametrize(("ending", "told"), [(ValueError("x"), ["ValueError"]), (LeaseLostError("r", 1), [])])
async def test_the_end_of_a_message_is_told_when_it_fails_but_not_when_it_moves_on(
    ending: Any, told: list[str]
) -> None:
    ctx = Told([ending])

    with pytest.raises(type(ending)):
        await run(agent(hooks={HookEvent.STEP_START: listen}), ctx)

    assert [data["error"] for event, data in ctx.told if event == "flow_end"] == told


async def test_without_hooks_nothing_is_told() -> None:
    ctx = Told()

    await run(agent(), ctx)

    assert ctx.told == []


async def test_middleware_and_hooks_are_there_for_the_runtime() -> None:
    made = agent(hooks={HookEvent.RUN_END: listen})

    assert made.hooks.listens_to(HookEvent.RUN_END)
    assert not made.middleware.chat
