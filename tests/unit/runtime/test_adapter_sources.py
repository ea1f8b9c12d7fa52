"""Sources that the site's own code reads: by a registered name, with a memory between two polls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ravi_django.capabilities.feeds import Item, adapter
from ravi_django.capabilities.feeds.adapter import Polled, find_source_adapter, register_source_adapter
from ravi_django.capabilities.feeds.polled import SourceError
from ravi_django.models import InboxMessage, Signal, Source
from tests.support import world
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "adapters_by_kind", {})
    code(lambda ctx, inbox: None)


class Counting:
    """Brings the number that it remembers, and remembers the next."""

    def __init__(self, *answers: Any) -> None:
        self.given: list[tuple[Any, Any]] = []
        self.answers: Iterator[Any] = iter(answers)

    async def poll(self, state: dict[str, Any], options: dict[str, Any]) -> Any:
        self.given.append((dict(state), options))
        answer = next(self.answers, None)
        if isinstance(answer, BaseException):
            raise answer
        if answer is not None:
            return answer
        number = state.get("next", 1)
        state["spoiled"] = options["spoiled"] = True
        return Polled([Item(id=str(number), title=f"Number {number}")], state={"next": number + 1})


def declare(**fields: Any) -> Source:
    given = {"name": "n", "kind": "adapter", "location": "numbers", "agent": "test/code", "options": {"q": "x"}}
    return Source.objects.create(**{**given, **fields})


def poll(source: Source) -> Source:
    Source.objects.filter(id=source.id).update(next_at=None, polling_until=None)
    world.poll_due(1)
    source.refresh_from_db()
    return source


def told() -> list[str]:
    boots = [row.body["payload"]["data"]["title"] for row in InboxMessage.objects.order_by("id")]
    return boots + [signal.payload["title"] for signal in Signal.objects.order_by("id")]


def test_what_it_remembers_is_given_to_the_next_poll():
    numbers = register_source_adapter("numbers", Counting())
    source = declare()

    poll(source)
    source = poll(source)

    assert told() == ["Number 1", "Number 2"]
    assert numbers.given == [({}, {"q": "x", "spoiled": True}), ({"next": 2}, {"q": "x", "spoiled": True})]
    assert source.options == {"q": "x", "state": {"next": 3}}


def test_a_poll_that_is_cut_off_before_its_state_is_kept_is_made_again(monkeypatch):
    register_source_adapter("numbers", Counting())
    source = declare()

    def die(*args: Any) -> bool:
        raise SystemExit

    with monkeypatch.context() as patch:
        world.patch(patch, "source_polled", die)
        with pytest.raises(SystemExit):
            poll(source)
    assert told() == ["Number 1"]

    source = poll(source)

    assert (told(), source.options["state"]) == (["Number 1"], {"next": 2})


def test_it_says_when_to_look_again():
    register_source_adapter("numbers", Counting(Polled(next_in_s=7200.0), SourceError("slow down", retry_after=10_000)))
    source = poll(declare(every_s=60))
    assert 7200 <= (source.next_at - source.checked_at).total_seconds() <= 7920

    source = poll(source)

    assert (source.error, source.failures) == ("slow down", 1)
    assert (source.next_at - source.checked_at).total_seconds() >= 10_000


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([Item(id="1")], "poll must return Polled"),
        (Polled(["text"]), "must be a list of Item"),
        (Polled([Item(id=str(n)) for n in range(1001)]), "1001 items in one poll"),
        (Polled(state={"x": "y" * 20_000}), "the limit is 16384"),
        (Polled(state=["x"]), "must be a dict"),
        (Polled(state={"x": object()}), "numbers"),
        (Polled(next_in_s=-1), "must be seconds above 0"),
        (Polled(next_in_s=float("nan")), "must be seconds above 0"),
        (ZeroDivisionError("oh"), "ZeroDivisionError: oh"),
        (TimeoutError(), "took longer"),
    ],
)
def test_what_it_does_wrong_is_an_error_of_the_source(answer, words):
    register_source_adapter("numbers", Counting(answer))

    source = poll(declare(options={"state": {"next": 5}}))

    assert words in source.error and source.failures == 1
    assert (told(), source.options) == ([], {"state": {"next": 5}})


def test_one_that_hangs_is_given_up(monkeypatch):
    class Hanging:
        async def poll(self, state: Any, options: Any) -> Polled:
            await asyncio.Event().wait()
            raise AssertionError

    world.patch(monkeypatch, "SOURCE_ADAPTERS_POLL_S", 0.05)
    register_source_adapter("numbers", Hanging())

    assert "took longer than 0.05 s" in poll(declare()).error


def test_a_name_that_nobody_has_registered_runs_nothing():
    register_source_adapter("numbers", Counting())

    source = poll(declare(location="os.system"))

    assert "no source adapter is registered as 'os.system'; there are: numbers" in source.error


@pytest.mark.parametrize(
    ("name", "what"), [("", Counting()), ("x" * 101, Counting()), (5, Counting()), (" ", Counting())]
)
def test_an_adapter_has_a_name(name, what):
    with pytest.raises(ValueError, match="1 to 100 characters"):
        register_source_adapter(name, what)


@pytest.mark.parametrize(
    "what", [None, "os.system", Counting, object()], ids=["None", "a text", "a class", "an object"]
)
def test_an_adapter_can_poll(what):
    with pytest.raises(TypeError, match="no source adapter"):
        register_source_adapter("x", what)


def test_a_later_one_replaces_an_earlier():
    register_source_adapter("x", Counting())
    later = register_source_adapter("x", Counting())

    assert find_source_adapter("x") is later and adapter.source_adapters() == ["x"]
