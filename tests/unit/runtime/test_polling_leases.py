"""A poll holds its source while it lives; one whose agent has too much unread is not read at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ravi_django.capabilities.feeds import Item
from ravi_django.capabilities.feeds.polled import Polled
from ravi_django.models import Run, Signal, Source, SourceItem
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.runs import auntil, code, in_background, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def agent() -> Any:
    async def read(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("new_source_item")

    return code(read)


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    world.patch(monkeypatch, "pollers_by_kind", {})
    return lambda poller: world.register_poller("drop", poller)


def a_source(**fields: Any) -> Source:
    return Source.objects.create(**{"name": "News", "agent": "test/code", "kind": "drop", **fields})


def test_who_dies_holds_its_sources_for_a_minute() -> None:
    a_source()
    with FakeClock() as clock:
        assert world.claim_sources(["drop"], 1, world.LEASE_S)
        clock.advance(59)
        assert not world.any_source_due(["drop"])
        clock.advance(2)
        assert world.any_source_due(["drop"])


@on_postgresql
def test_who_lives_holds_a_source_for_as_long_as_it_reads(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "SOURCES_RENEWALS", 3000)
    stolen: list[list[Source]] = []

    async def slow(source: Source, _: Any) -> Polled:
        for _ in range(4):  # four minutes, in all
            before = source.polling_until
            clock.advance(world.LEASE_S - 1)
            await auntil(lambda before=before: source.polling_until != before)
            stolen.append(await asyncio.wrap_future(in_background(world.claim_sources, ["drop"], 1, 60.0)))
        return Polled([Item(id="one", title="one")], etag="read")

    kind(slow)
    source = a_source()
    with FakeClock() as clock:
        assert world.poll_due() == 1

    source.refresh_from_db()
    assert stolen == [[], [], [], []]
    assert (source.etag, source.polling_until) == ("read", None)
    assert SourceItem.objects.count() == 1


def test_a_source_that_another_has_taken_is_not_taken_back() -> None:
    a_source()
    with FakeClock() as clock:
        (lost,) = world.claim_sources(["drop"], 1, 60.0)
        clock.advance(61)
        (taken,) = world.claim_sources(["drop"], 1, 60.0)
        clock.advance(5)

        world.renew_sources([lost], 60.0)

        assert Source.objects.get().polling_until == taken.polling_until


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_source_whose_agent_has_too_much_unread_is_put_off_unread(
    kind: Any, settings: Any, in_the_middle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RAVI = {**settings.RAVI, "SOURCE_UNREAD": 3}
    polls: list[str] = []

    async def poll(source: Source, _: Any) -> Polled:
        polls.append(source.etag)
        return Polled([Item(id="more", title="more")], etag="new")

    kind(poll)
    source = a_source(etag="old")
    world.tell(source, [Item(id=str(number)) for number in range(4)])
    if in_the_middle:  # it became so while the source was read
        world.patch(monkeypatch, "full_sources", lambda ids: set())

    made = world.poll_due()

    source.refresh_from_db()
    assert (made, polls) == ((1, ["old"]) if in_the_middle else (0, []))
    assert (source.etag, source.failures, source.error) == ("old", 0, world.TELLING_UNREAD)
    assert source.polling_until is None and source.next_at is not None
    assert SourceItem.objects.count() == 4

    Signal.objects.update(consumed_at="2026-11-22T12:00:00Z")
    Source.objects.update(next_at=None)
    assert world.poll_due() == 1
    source.refresh_from_db()
    assert (source.etag, source.error, Run.objects.count()) == ("new", "", 1)
    assert Signal.objects.get(consumed_at=None).payload["id"] == "more"
