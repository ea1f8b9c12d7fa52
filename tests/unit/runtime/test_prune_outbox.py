"""What waits for an event bus that the site has no more is named, and goes with time."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django import emit, follow
from ravi_django.kernel import Event
from ravi_django.management import diagnosis
from ravi_django.models import FeedItem, OutboxEvent, Publication
from tests.support import world
from tests.support.runs import code
from tests.support.world import enqueue

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 24 * 3600.0
KEEP = {"outbox": 30 * DAY}


@pytest.fixture(autouse=True)
def _not_relayed(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "courier_hint")


def bus(settings: Any, where: str | None) -> None:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": where}


def write(settings: Any, count: int) -> None:
    bus(settings, "redis://127.0.0.1:1/0")
    for number in range(count):
        assert enqueue(Event.create("shop.sold", source="shop", number=number))


def numbers() -> list[int]:
    return [row.body["data"]["number"] for row in OutboxEvent.objects.order_by("id")]


def test_what_waits_for_no_bus_goes_when_it_is_old(settings: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "OUTBOX_ROWS", 2)
    write(settings, 5)
    refused = OutboxEvent.objects.latest("id").pk
    OutboxEvent.objects.filter(id=refused).update(tries=world.OUTBOX_ROWS_TRIES, error="WRONGTYPE")
    clock.advance(20 * DAY)
    write(settings, 1)
    bus(settings, None)
    clock.advance(10 * DAY)
    assert world.prune(KEEP)["outbox"] == 0
    clock.advance(1)
    assert world.prune(KEEP, dry_run=True)["outbox"] == 5
    assert len(numbers()) == 6
    assert world.prune(KEEP)["outbox"] == 5
    assert numbers() == [0]
    assert "outbox" not in world.prune({"journal": 0})


def test_what_waits_for_a_bus_that_is_away_stays_however_old(settings: Any, clock: Any) -> None:
    write(settings, 2)
    clock.advance(999 * DAY)
    for dry_run in (True, False):
        assert world.prune(KEEP, dry_run=dry_run)["outbox"] == 0
    assert numbers() == [0, 1]


def test_the_doctor_names_what_waits_for_no_bus(settings: Any, clock: Any) -> None:
    assert list(diagnosis.outbox()) == []
    write(settings, 3)
    assert list(diagnosis.outbox()) == [], "the health of the bus says so"
    OutboxEvent.objects.filter(id=OutboxEvent.objects.latest("id").pk).update(tries=world.OUTBOX_ROWS_TRIES)
    clock.advance(90)
    bus(settings, None)
    (finding,) = [found for found in diagnosis.examine() if found.what.startswith("outbox")]
    assert finding.level == "warning"
    assert finding.what == "outbox: 3 events wait, the oldest for 90 s, and RAVI['EVENT_BUS'] is None"
    assert "ravi_prune" in finding.mend and "EVENT_BUS" in finding.mend


def test_publications_that_are_delivered_go_once_they_are_old(clock, monkeypatch):
    async def story(ctx, inbox): ...

    world.silence(monkeypatch, "fan_out_hint")
    world.patch(monkeypatch, "PUBLICATIONS_ROWS", 2)
    keep = {"publications": 30 * DAY}
    for _ in range(3):
        emit("news/a", "nobody follows")
    found, _ = follow(code(story), "news/b")
    under_way, waiting = emit("news/b", "under way"), emit("news/b", "in a digest")
    FeedItem.objects.create(follow=found, publication=waiting, due_at=world.now())
    Publication.objects.filter(id=waiting.id).update(done_at=world.now())
    clock.advance(30 * DAY)
    assert world.prune(keep)["publications"] == 0
    clock.advance(1)
    young = emit("news/a", "young")
    assert world.prune(keep, dry_run=True)["publications"] == 3
    assert world.prune(keep)["publications"] == 3
    assert set(Publication.objects.values_list("id", flat=True)) == {under_way.id, waiting.id, young.id}
    assert "publications" not in world.prune({"journal": 0})
