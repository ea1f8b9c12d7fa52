"""Sources that the site's own code reads, by a registered name."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ravi_django.capabilities.feeds import Item
from ravi_django.kernel import InvalidInputError
from ravi_django.models import InboxMessage, Signal, Source
from ravi_django.wings.feeds.fetching.adapter import Polled, find_source_adapter, register_source_adapter
from tests.support import world
from tests.support.cases import case, refused
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


WRONG = [
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
]


def test_what_it_does_wrong_is_an_error_of_the_source():
    register_source_adapter("numbers", Counting(*(answer for answer, _ in WRONG)))
    source = declare(options={"state": {"next": 5}})
    for failures, (_, words) in enumerate(WRONG, 1):
        source = poll(source)
        assert words in source.error and source.failures == failures
        assert (told(), source.options) == ([], {"state": {"next": 5}}), words
    source = poll(declare(name="other", location="os.system"))
    assert "no source adapter is registered as 'os.system'; registered: numbers" in source.error


def test_one_that_hangs_is_given_up(monkeypatch):
    class Hanging:
        async def poll(self, state: Any, options: Any) -> Polled:
            await asyncio.Event().wait()
            raise AssertionError

    world.patch(monkeypatch, "SOURCE_ADAPTERS_POLL_S", 0.05)
    register_source_adapter("numbers", Hanging())

    assert "took longer than 0.05 s" in poll(declare()).error


def test_an_adapter_has_a_name_can_poll_and_is_replaced_by_a_later_one():
    for name in ("", "x" * 101, 5, " "):
        with pytest.raises(ValueError, match="1 to 100 characters"):
            register_source_adapter(name, Counting())
    for what in (None, "os.system", Counting, object()):
        with pytest.raises(TypeError, match="not a source adapter"):
            register_source_adapter("x", what)
    register_source_adapter("x", Counting())
    later = register_source_adapter("x", Counting())
    assert find_source_adapter("x") is later


def a_webhook(**given: Any) -> Source:
    return world.add_source("webhook", "", "test/code", **given)


def test_a_secret_that_is_weak_or_would_be_two_is_refused() -> None:
    weak = ["fifteen of them", "a" * 20 + "," + "b" * 20, "," * 20, "a" * 20 + ",", "tiger", "x" * 151]
    for secret in weak:
        with pytest.raises(InvalidInputError, match=r"^secret: 16 to 150 characters and no comma") as refused:
            a_webhook(secret=secret)
        assert refused.value.field == "secret" and secret not in str(refused.value)
    assert not Source.objects.exists()
    for secret in ("", "sixteen of them.", "x" * 150):
        source = a_webhook(secret=secret)
        second = world.make_secret(source)
        source.refresh_from_db()
        assert world.secrets_of(source) == [second, *filter(None, [secret])], "there is room for the next"


def test_what_is_written_here_is_not_typed() -> None:
    register_source_adapter("x", Counting())
    for kind, location in (("feed", "https://example.com/feed.xml"), ("adapter", "x")):
        for name in world.WRITTEN_HERE:
            with case(kind, name), refused("options", f"{name} is set by polls"):
                world.add_source(kind, location, "test/code", options={name: {}})


def test_a_row_that_has_what_would_be_refused_has_no_fault() -> None:
    source = a_webhook()
    for secret in ("tiger", f"{'a' * 43},{'b' * 43}"):
        Source.objects.update(secret=secret)
        assert list(world.source_errors(Source.objects.get(id=source.id))) == []
    source = world.add_source("feed", "https://example.com/feed.xml", "test/code")
    source.options = {name: {"password": "x" * 70_000} for name in world.WRITTEN_HERE}
    assert list(world.source_errors(source)) == []
