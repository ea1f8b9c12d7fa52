"""A fallback list in a run: what is journaled, replayed and shown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ravi_django.capabilities.llm import FallbackModel
from ravi_django.kernel import (
    ChatMessage,
    ModelError,
    ModelResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    TransientError,
    Usage,
)
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.runs import code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

BUSY = TransientError("slow down", type="RateLimitError", status=429)


class Told(ScriptedModel):
    """Streams these events, then fails with the last one or answers with it."""

    def __init__(self, *told: Any, name: str = "told") -> None:
        super().__init__("", name=name)
        self.told = told

    async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
        self.calls.append(messages)
        for event in self.told:
            if isinstance(event, Exception):
                raise event
            yield event


def answer(text: str, **fields: Any) -> ModelResponse:
    return ModelResponse.of([{"type": "text", "text": text}], **fields)  # type: ignore[list-item]


async def ask(ctx, inbox):
    response = await ctx.llm([ChatMessage.of("user", "hi")])
    return {"said": response.text, "by": response.model, "cost": response.cost, "tokens": response.usage.total}


def frames_of(run, *types):
    found, done = world.events_page(run.id)
    assert done
    return [frame for frame in found if frame["type"] in types]


def test_the_answer_is_journaled_under_the_first_ones_name(clock):
    first = ScriptedModel([BUSY], name="first")
    second = ScriptedModel("hello", name="second", usage=Usage(input_tokens=3, output_tokens=2), cost=0.5)
    code(ask, model=FallbackModel([first, second]))
    run = drive(make_run())
    row = JournalEntry.objects.get(kind="llm.call")
    assert (row.name, row.result["model"], row.attempt) == ("first", "second", 1)
    assert row.request["fell_back"] == [{"to": "second", "error": "RateLimitError"}]
    assert (run.input_tokens, run.output_tokens, float(run.cost), run.cost_unknown) == (3, 2, 0.5, False)


def test_a_replay_gives_the_same_answer_without_a_call(clock):
    first, second = ScriptedModel([BUSY], name="first"), ScriptedModel("hello", name="second", cost=0.5)
    seen = []

    async def story(ctx, inbox):
        seen.append(await ask(ctx, inbox))
        return seen[-1]["said"]

    code(story, model=FallbackModel([first, second]))
    run = drive(make_run(), dies=1, written=True)  # right behind the call's commit
    assert (run.status, len(first.calls), len(second.calls)) == (Status.RUNNING, 1, 1)
    take_over(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "hello")
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert seen[-1] == {"said": "hello", "by": "second", "cost": 0.5, "tokens": 0}
    assert seen[0] == seen[-1]


def test_when_all_fail_the_run_comes_back_later(clock):
    first = ScriptedModel([ModelError("no key", type="AuthenticationError", status=401)], name="first")
    second = ScriptedModel([BUSY], name="second")
    code(ask, model=FallbackModel([first, second]))
    run = drive(make_run())
    assert (run.status, run.attempts) == (Status.PENDING, 1)
    assert [entry.kind for entry in journal_of(run)] == ["run.started", "run.retried"]
    clock.advance(60)
    drive(run)
    assert (len(first.calls), len(second.calls)) == (2, 2)


def test_a_partial_answer_is_replaced_in_the_stream(clock):
    first = Told(ReasoningDelta(text="hm"), TextDelta(text="half an"), BUSY, name="first")
    second = Told(BUSY, name="second")
    third = Told(TextDelta(text="hello "), TextDelta(text="there"), answer("hello there"), name="third")
    code(ask, model=FallbackModel([first, second, third]))
    run = drive(make_run())
    said: dict[str, str] = {}
    for frame in frames_of(run, "text.delta"):
        said[frame["attempt"]] = said.get(frame["attempt"], "") + frame["text"]
    epoch = str(run.lease_epoch)
    assert said == {epoch: "half an", f"{epoch}.1": "", f"{epoch}.2": "hello there"}
    assert len({frame["call"] for frame in frames_of(run, "text.delta", "reasoning.delta")}) == 1


def test_the_next_model_has_its_own_time(clock, settings):
    settings.RAVI = {**settings.RAVI, "MODEL_TIMEOUT_S": 0.6}
    slow = ScriptedModel("too late", name="slow", delay=30)
    second = ScriptedModel("hello", name="second", delay=0.4)
    code(ask, model=FallbackModel([slow, second], fallback_after=0.4))
    assert drive(make_run()).status == Status.COMPLETED


class Slowly(ScriptedModel):
    """So many words, one every so many seconds, then its answer."""

    def __init__(self, words: float, every: float, *, name: str = "slowly") -> None:
        super().__init__("", name=name)
        self.words, self.every = words, every

    async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
        self.calls.append(messages)
        said = 0
        while said < self.words:
            await asyncio.sleep(self.every)
            said += 1
            yield TextDelta(text="word ")
        yield answer("word " * said)


def test_a_long_answer_that_goes_on_is_waited_for_but_not_for_ever(clock, settings):
    settings.RAVI = {**settings.RAVI, "MODEL_TIMEOUT_S": 0.2}
    code(ask, model=Slowly(8, 0.05))
    assert drive(make_run()).status == Status.COMPLETED
    settings.RAVI = {**settings.RAVI, "MODEL_TIMEOUT_S": 0.2, "MODEL_TOTAL_S": 0.3}
    code(ask, model=Slowly(float("inf"), 0.02))
    assert drive(make_run()).status == Status.PENDING
    words = "model slowly did not end its answer within 0.3 s"
    assert JournalEntry.objects.get(kind="run.retried").error == {"type": "Timeout", "message": words}


def test_the_next_one_is_asked_when_the_first_one_drips(clock, settings):
    settings.RAVI = {**settings.RAVI, "MODEL_TIMEOUT_S": 0.2, "MODEL_TOTAL_S": 0.4}
    code(ask, model=FallbackModel([Slowly(float("inf"), 0.02, name="drips"), Slowly(6, 0.05, name="second")]))
    run = drive(make_run())
    row = JournalEntry.objects.get(kind="llm.call")
    assert (run.status, row.result["model"]) == (Status.COMPLETED, "second")
    assert row.request["fell_back"] == [{"to": "second", "error": "Timeout"}]


OURS = {"input_cost_per_token": 0.5, "output_cost_per_token": 0.25}


def test_each_model_is_billed_at_its_own_price(clock, settings):
    for priced, said, cost in (
        ("first", "", None),
        ("first", "second", None),
        ("second", "", 2.0),
        ("sec*", "second", 2.0),
        ("alone", "", 2.0),
        ("alone", "alone", 2.0),
    ):
        settings.RAVI = {**settings.RAVI, "PRICES": {priced: OURS}}
        name = "alone" if priced == "alone" else "second"
        model = Told(answer("hello", usage=Usage(input_tokens=3, output_tokens=2), model=said), name=name)
        code(ask, model=model if name == "alone" else FallbackModel([ScriptedModel([BUSY], name="first"), model]))
        run = drive(make_run())
        row = JournalEntry.objects.get(run=run, kind="llm.call")
        found = (None if row.cost is None else float(row.cost), run.cost_unknown)
        assert found == (cost, cost is None), (priced, said)


def test_an_answer_that_was_cut_off_says_so(clock):
    for reason, shown in (("length", {"finish_reason": "length"}), ("stop", {})):
        code(ask, model=Told(answer("half an", finish_reason=reason)))
        run = drive(make_run())
        (frame,) = frames_of(run, "completion")
        for told in (frame, JournalEntry.objects.get(run=run, kind="llm.call").result):
            assert {key: value for key, value in told.items() if key == "finish_reason"} == shown


def test_a_tool_that_is_about_to_be_called_is_shown_once(clock):
    calls = Told(
        ToolCallDelta(index=0, call_id="a"),
        ToolCallDelta(index=0, call_id="a", name="add", arguments='{"a'),
        ToolCallDelta(index=0, call_id="a", name="add", arguments='": 1}'),
        ToolCallDelta(index=1, call_id="b", name="add", arguments="{}"),
        answer("well"),
    )
    code(ask, model=calls)
    run = drive(make_run())
    row = JournalEntry.objects.get(kind="llm.call")
    thinking = [frame["content"] for frame in frames_of(run, "progress") if frame["step"] == "thinking"]
    assert thinking == [
        {"model": "told", "call": row.path},
        {"tool": "add", "call": row.path},
        {"tool": "add", "call": row.path},
    ]
    assert run.status == Status.COMPLETED
