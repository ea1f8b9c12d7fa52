"""A model's fallback list and its RetryPolicy in a run: which failures come again or go to the next model, what is
journaled, replayed and shown; across crashes."""

import asyncio
from typing import Any

import pytest

from ravi_django.calls.llm import FallbackModel
from ravi_django.kernel import (
    ChatMessage,
    ModelError,
    ModelResponse,
    ReasoningDelta,
    RetryPolicy,
    TextDelta,
    ToolCallDelta,
    TransientError,
    Usage,
)
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.runs import code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


BUSY = TransientError("slow down", type="ServiceUnavailable", status=503)


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
    assert row.request["fell_back"] == [{"to": "second", "error": "ServiceUnavailable"}]
    assert (run.input_tokens, run.output_tokens, float(run.cost), run.cost_unknown) == (3, 2, 0.5, False)


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


OURS = {"input_cost_per_token": 0.5, "output_cost_per_token": 0.25}


def test_each_model_is_billed_at_its_own_price(clock, settings):
    of_others = (("first", "", None), ("first", "second", None), ("second", "", 2.0), ("sec*", "second", 2.0))
    for priced, said, cost in (*of_others, ("alone", "", 2.0), ("alone", "alone", 2.0)):
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
    shown = ({"model": "told"}, {"tool": "add"}, {"tool": "add"})
    assert thinking == [{**one, "call": row.path} for one in shown]
    assert run.status == Status.COMPLETED


def failing(error, policy, times=99):
    """A model with a policy that fails so often and then answers."""
    left = [times]

    def say(messages, options):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "hello"

    model = ScriptedModel([say])
    model.retry = policy
    return model


async def say(ctx, inbox):
    return (await ctx.llm([ChatMessage.of("user", "hi")])).text


def retried():
    rows = JournalEntry.objects.filter(kind="run.retried").order_by("seq")
    return [(row.error["type"], row.result["attempt"], row.result["retry_in_s"]) for row in rows]


def test_the_policy_says_how_long_and_how_often(clock):
    model = failing(BUSY, RetryPolicy(max_attempts=3, base_s=10, jitter=0))
    code(say, model=model)
    run = make_run()
    waits = []
    for _ in range(2):
        drive(run)
        waits.append((run.wake_at - clock.now).total_seconds())
        clock.advance(60)
    drive(run)
    assert waits == [10, 20]
    assert retried() == [("ServiceUnavailable", 1, 10), ("ServiceUnavailable", 2, 20)]
    assert (run.status, run.error["type"], len(model.calls)) == (Status.FAILED, "ServiceUnavailable", 3)


def test_a_policy_goes_before_the_sites_settings(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_ATTEMPTS": 2, "RETRY_BASE_S": 30}
    code(say, model=failing(BUSY, None))
    run = drive(make_run())
    assert 15 <= (run.wake_at - clock.now).total_seconds() <= 30
    clock.advance(60)
    assert drive(run).status == Status.FAILED
    code(say, model=failing(BUSY, RetryPolicy(max_attempts=4), times=3))
    run = make_run()
    for _ in range(3):
        assert drive(run).status == Status.PENDING
        clock.advance(60)
    assert drive(run).output == "hello"
    long = TransientError("back tomorrow", retry_after=86_400)
    code(say, model=failing(long, RetryPolicy(base_s=1, max_retry_after_s=20)))
    assert (drive(make_run()).wake_at - clock.now).total_seconds() == 20


def test_a_transient_error_that_is_given_up_on_is_final_and_a_permanent_one_that_is_named_comes_again(clock):
    model = failing(BUSY, RetryPolicy(give_up_on={503}))
    code(say, model=model)
    run = drive(make_run())
    assert (run.status, run.error) == (Status.FAILED, {"type": "ServiceUnavailable", "message": "slow down"})
    assert JournalEntry.objects.get(kind="llm.call").error["status"] == 503
    assert len(model.calls) == 1
    bad = ModelError("try me again", type="BadRequestError", status=400)
    code(say, model=failing(bad, RetryPolicy(retry_on={"BadRequestError"}), times=1))
    run = drive(make_run())
    assert (run.status, run.attempts) == (Status.PENDING, 1)
    assert not JournalEntry.objects.filter(run=run, kind="llm.call").exists()
    clock.advance(60)
    assert drive(run).output == "hello"


def test_the_count_goes_on_across_a_crash(clock):
    model = failing(BUSY, RetryPolicy(max_attempts=3, jitter=0))
    code(say, model=model)
    run = drive(make_run())
    clock.advance(60)
    drive(run, dies="end")
    assert (run.status, run.attempts) == (Status.RUNNING, 1), "its worker died before it could give the run back"
    take_over(clock, run)
    assert (run.status, run.attempts) == (Status.PENDING, 2)
    clock.advance(60)
    drive(run)
    assert run.status == Status.FAILED
    assert [attempt for _, attempt, _ in retried()] == [1, 2]
