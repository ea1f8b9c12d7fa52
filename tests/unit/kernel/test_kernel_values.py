"""Errors, addresses, secrets, tools, retry policies and cancellation tokens of the kernel."""

import asyncio
import dataclasses
import inspect
import random
import re
import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter, ValidationError

from ravi_django.kernel import (
    INVALID_ARGUMENTS_KEY,
    AgentId,
    CancellationError,
    CancellationToken,
    Effect,
    GenerationOptions,
    InvalidInputError,
    ModelError,
    RetryPolicy,
    Risk,
    SecretRefusedError,
    Tool,
    ToolArgumentsError,
    ToolSpec,
    TopicId,
    TransientError,
    errors,
)
from ravi_django.kernel.secrets import holds_secret, is_secret, secret_names
from ravi_django.kernel.tools import specs_of
from tests.support import kernel_strategies as kernel
from tests.support.cases import case, refused

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, BaseException) and cls.__module__ == errors.__name__
}


def drawn_tree() -> dict[str, str]:
    """Child → parent, as the picture at the top of the module draws them."""
    parents: dict[str, str] = {}
    stack: list[str] = ["KernelError"]
    for line in (errors.__doc__ or "").splitlines():
        if drawn := re.match(r"((?:│   |    )*)(?:├── |└── )(\w+)", line):
            depth = len(drawn[1]) // 4 + 1
            stack[depth:] = [drawn[2]]
            parents[drawn[2]] = stack[depth - 1]
    return parents


def test_the_tree_at_the_top_of_the_file_is_the_real_one() -> None:
    real = {name: cls.__bases__[0].__name__ for name, cls in CLASSES.items()}
    del real["KernelError"], real["SuspendInterrupt"]
    assert drawn_tree() == real
    assert [name for name, cls in CLASSES.items() if not cls.__doc__] == []
    # transient and permanent are apart
    assert not issubclass(errors.TransientError, errors.PermanentError)
    assert issubclass(errors.BudgetExhaustedError, errors.PermanentError)
    assert errors.TransientError("slow down", retry_after=2.5).retry_after == 2.5


def test_suspend_interrupt_passes_an_except_exception() -> None:
    with pytest.raises(errors.SuspendInterrupt):
        try:
            raise errors.SuspendInterrupt
        except Exception:
            pytest.fail("an agent's `except Exception` must not swallow a suspension")


def test_an_error_says_what_it_is_of() -> None:
    # message names the thing and the fix
    for error, words in [
        (errors.AgentNotFoundError("react/x"), ["react/x", "register"]),
        (errors.LeaseLostError("r1", 3), ["r1", "3", "another worker"]),
        (errors.LeaseLostError("r1", 3, owner="w2", until=datetime(2025, 1, 1, 12, 0, 5, tzinfo=UTC)),
            ["w2", "12:00:05"]),
        (errors.AgentCrashError("r1", "react/x"), ["r1", "react/x", "retry"]),
        (errors.HandlerError(KeyError("k")), ["KeyError", "k"]),
        (errors.CancellationError("closed by ada"), ["closed by ada"]),
    ]:  # fmt: skip
        assert [word for word in words if word not in str(error)] == [], error
    # tool arguments error names the argument and is a value error
    error = errors.ToolArgumentsError("argument 'amount' is missing", field="amount")
    assert error.field == "amount"
    assert isinstance(error, ValueError)
    # model error keeps the providers type and status
    error = errors.ModelError("quota", type="RateLimitError", status=429)
    assert (str(error), error.type, error.status) == ("quota", "RateLimitError", 429)


targets: TypeAdapter[TopicId | AgentId] = TypeAdapter(TopicId | AgentId)


@given(kernel.agent_ids, kernel.topic_ids)
def test_an_address_reads_back_as_what_it_was(agent: AgentId, topic: TopicId) -> None:
    assert (AgentId.parse(str(agent)), TopicId.parse(str(topic))) == (agent, topic)
    for target in (agent, topic):
        read = targets.validate_json(targets.dump_json(target))
        assert (read, type(read)) == (target, type(target))


def test_addresses_are_values() -> None:
    # text leaves out the default namespace
    assert str(AgentId("react", "helper")) == "react/helper"
    assert str(AgentId("react", "helper", "acme")) == "acme/react/helper"
    assert str(TopicId("news")) == "news/default"
    agent = AgentId("react", "helper")
    assert len({agent, AgentId("react", "helper"), TopicId("react", "helper")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        agent.key = "other"


def test_what_is_no_address_is_refused() -> None:
    # bad address is refused with the form that is wanted
    for text in ["", "react", "a/b/c/d", "/b", "a/", "a b/c", "a/ü", "a/b\n", "x" * 101 + "/b"]:
        with case(text), pytest.raises(InvalidInputError, match=r"looks like type/key|must be 1 to 100"):
            AgentId.parse(text)
    # bad part is named
    for field in ["type", "key", "namespace"]:
        with case(field):
            parts = {"type": "react", "key": "helper", "namespace": "default", field: "not allowed"}
            with refused(field):
                AgentId(**parts)
    # agent field takes agents alone
    for value in ["topic:news/sport", 7, "nothing"]:
        with case(value), pytest.raises(ValidationError):
            TypeAdapter(AgentId).validate_python(value)


@given(st.none() | st.integers() | st.lists(st.text(), max_size=2))
def test_what_is_no_text_is_no_address(value: object) -> None:
    with pytest.raises(InvalidInputError):
        AgentId.parse(value)


VALUE = "sk-never-show-me-0123456789"


def test_names_of_keys() -> None:
    for name in (
        "api_key apiKey X-Api-Key OPENAI_API_KEY aws_secret_access_key AWS_SESSION_TOKEN azure_ad_token "
        "Authorization client_secret vertex_credentials password token Cookie"
    ).split():
        assert is_secret(name), name
    # names of other things
    for name in "max_tokens prompt_cache_key aws_access_key_id token_count secretary stop metadata keys".split():
        assert not is_secret(name), name
    # places are named however deep
    value = {"headers": {"Authorization": "x"}, "list": [{"a": 1}, {"api_key": "x"}], "api_key": None}
    assert list(secret_names(value)) == ["headers.Authorization", "list.1.api_key"]
    assert holds_secret("extra_headers", {"X-Api-Key": "x"})
    assert not holds_secret("extra_headers", {"X-Trace": "x"})


def test_options_take_no_keys() -> None:
    for extra, place in [
        ({"api_key": VALUE}, "extra.api_key"),
        ({"extra_headers": {"Authorization": f"Bearer {VALUE}"}}, "extra.extra_headers.Authorization"),
    ]:
        with case(extra, place):
            for make in (
                lambda: GenerationOptions(extra=extra),
                lambda: GenerationOptions.model_validate({"extra": extra}),
            ):
                with pytest.raises(SecretRefusedError) as caught:
                    make()
                assert caught.value.field == place
                assert place in str(caught.value) and VALUE not in repr(caught.value)
    # other extras pass
    extra = {"seed": 7, "prompt_cache_key": "user-1", "extra_headers": {"X-Trace": "1"}}
    assert GenerationOptions(extra=extra).extra == extra


class Greeter(Tool):
    name = "greet"
    description = "Greets."
    parameters = {"type": "object", "properties": {"who": {"type": "string"}}}

    def execute(self, *, who: str = "world") -> str:
        return f"hello {who}"


def test_promise_follows_the_risk() -> None:
    assert Risk.SAFE.rank < Risk.HIGH.rank < Risk.CRITICAL.rank

    for risk, effect in [
        (Risk.SAFE, Effect.IDEMPOTENT), (Risk.HIGH, Effect.AT_MOST_ONCE), (Risk.CRITICAL, Effect.AT_MOST_ONCE),
    ]:  # fmt: skip
        with case(risk, effect):
            tool = Greeter()
            tool.risk = risk
            assert tool.promised_effect is effect
    # own promise goes before the risk
    tool = Greeter()
    tool.risk, tool.effect = Risk.CRITICAL, Effect.TRANSACTIONAL
    assert tool.promised_effect is Effect.TRANSACTIONAL


def test_spec_and_refusals_of_a_tool() -> None:
    spec = Greeter().spec
    assert spec == ToolSpec(name="greet", description="Greets.", parameters=Greeter.parameters)
    assert specs_of([Greeter(), spec]) == [spec, spec]

    with pytest.raises(ToolArgumentsError, match=r"the arguments were not valid JSON: \{\"who\": ") as caught:
        Greeter().validate({INVALID_ARGUMENTS_KEY: '{"who": ' + "x" * 10_000})
    assert len(str(caught.value)) < 300
    # a tool without execute says so
    with pytest.raises(NotImplementedError, match="Tool needs an execute method"):
        Tool().execute()


BUSY = TransientError("slow down", type="RateLimitError", status=429)
BAD = ModelError("bad", type="BadRequestError", status=400)


def test_what_is_tried_again() -> None:
    # without names the adapter decides
    assert RetryPolicy().retries(BUSY) and not RetryPolicy().retries(BAD)

    for named in ["RateLimitError", 429]:
        assert not RetryPolicy(give_up_on=frozenset({named})).retries(BUSY), named

    for named in ["BadRequestError", 400]:
        assert RetryPolicy(retry_on=frozenset({named})).retries(BAD), named
    # an error without a status is known by its type alone
    cut = TransientError("cut", type="StreamCut")
    assert RetryPolicy(give_up_on=frozenset({429})).retries(cut)
    # any collection of names does
    policy = RetryPolicy(retry_on=[400], give_up_on=("RateLimitError",))
    assert policy.retry_on == {400}
    assert hash(policy) == hash(RetryPolicy(retry_on=frozenset({400}), give_up_on=frozenset({"RateLimitError"})))


def test_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    # delays double up to the longest
    policy = RetryPolicy(base_s=2, max_s=10, jitter=0)
    assert [policy.delay_s(failures) for failures in (0, 1, 2, 3, 1000)] == [2, 4, 8, 10, 10]
    # the provider may ask for more time within the cap
    policy = RetryPolicy(base_s=1, jitter=0, max_retry_after_s=30)
    assert (policy.delay_s(0, retry_after=7), policy.delay_s(0, retry_after=0.1)) == (7, 1)
    assert policy.delay_s(0, retry_after=86_400) == 30
    assert RetryPolicy(base_s=1, jitter=0, max_retry_after_s=0).delay_s(0, retry_after=7) == 1
    # delays are spread as far as the jitter says
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    assert (RetryPolicy(base_s=8, jitter=0.25).delay_s(0), RetryPolicy(base_s=8, jitter=1).delay_s(0)) == (6, 0)


def test_what_makes_no_sense_is_refused_by_name() -> None:
    for field, wrong in [
        ("max_attempts", 0), ("base_s", -1), ("max_s", -1), ("max_retry_after_s", -1), ("jitter", 1.5),
        ("jitter", -0.1),
    ]:  # fmt: skip
        with case(field, wrong), refused(field):
            RetryPolicy(**{field: wrong})
    with pytest.raises(InvalidInputError, match="429"):
        RetryPolicy(retry_on=frozenset({429}), give_up_on=frozenset({429}))


BOUND_S = 5.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_check_raises_the_first_reason() -> None:
    # fresh token lets pass
    token = CancellationToken()
    token.check()
    assert not token.cancelled and token.reason is None
    token = CancellationToken()
    token.cancel("closed by ada")
    token.cancel("too late")
    with pytest.raises(CancellationError) as caught:
        token.check()
    assert caught.value.reason == "closed by ada"


def test_children_are_cancelled_with_their_parent_and_not_the_other_way_round() -> None:
    token = CancellationToken()
    child = token.child()
    grandchild = child.child()
    token.cancel("stop")
    assert (child.reason, grandchild.reason) == ("stop", "stop")
    # cancelling a child leaves its parent and siblings
    token = CancellationToken()
    child, sibling = token.child(), token.child()
    child.cancel()
    assert not token.cancelled and not sibling.cancelled
    # child of a cancelled token is born cancelled
    token = CancellationToken()
    token.cancel("stop")
    assert token.child().reason == "stop"


def test_deadlines_of_parents_and_children() -> None:
    # passed deadline reads as cancelled
    clock = Clock()
    token = CancellationToken(deadline=110.0, clock=clock)
    token.check()
    clock.now = 110.0
    with pytest.raises(CancellationError, match="deadline"):
        token.check()
    # child has the earlier deadline
    for own, expected in [(105.0, 105.0), (120.0, 110.0), (None, 110.0)]:
        with case(own, expected):
            token = CancellationToken(deadline=110.0, clock=Clock())
            assert token.child(deadline=own).deadline == expected
    # child s own deadline does not cancel the parent
    clock = Clock()
    token = CancellationToken(clock=clock)
    child = token.child(deadline=105.0)
    clock.now = 106.0
    assert child.cancelled and not token.cancelled
    # parents deadline reaches a child
    clock = Clock()
    child = CancellationToken(deadline=110.0, clock=clock).child()
    clock.now = 111.0
    assert child.cancelled


async def test_wait_ends_when_it_is_cancelled() -> None:
    token = CancellationToken()
    token.cancel()
    await asyncio.wait_for(token.wait(), BOUND_S)
    # wait is woken from another thread
    token = CancellationToken()
    waiter = asyncio.create_task(token.wait())
    await asyncio.sleep(0)  # let it begin to wait
    assert not waiter.done()
    thread = threading.Thread(target=token.cancel, args=("from outside",))
    thread.start()
    await asyncio.wait_for(waiter, BOUND_S)
    thread.join()
    assert token.reason == "from outside"
    # cancelling the parent wakes who waits for a child
    token = CancellationToken()
    child = token.child()
    waiters = [asyncio.create_task(child.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    token.cancel("stop")
    await asyncio.wait_for(asyncio.gather(*waiters), BOUND_S)
    assert child.reason == "stop"
    # wait ends at the deadline
    clock = Clock()
    token = CancellationToken(deadline=100.01, clock=clock)
    waiter = asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    clock.now = 100.02
    await asyncio.wait_for(waiter, BOUND_S)
    assert token.reason == "deadline passed"
    # an abandoned wait leaves nothing behind
    token = CancellationToken()
    waiter = asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert token._waiters == []
    token.cancel()
