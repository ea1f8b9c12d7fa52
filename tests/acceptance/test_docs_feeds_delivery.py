"""What the part "Delivery" of docs/feeds.md shows is run here."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django import emit, register, submit
from ravi_django.models import JournalEntry
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import drive

PAGE = Page("feeds")

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clock():
    from ravi_django.testing import FakeClock

    with FakeClock() as clock:
        yield clock


def test_a_desk_reads_single_messages_and_digests(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "fan_out_hint", "fan_out_wake")
    register(PAGE.run("shop/desk.py")["Desk"]())
    run = drive(submit("desk/desk", "Begin."))

    for title in ("one", "two", "three"):
        world.fan_out_run(emit("news/sport", {"title": title}).id)
    drive(run)
    clock.advance(3601)
    world.fan_out_sweep()
    drive(run)

    rows = JournalEntry.objects.filter(run=run, name="news").order_by("seq")
    assert [row.result for row in rows][1:] == [["one"], ["two", "three"]]
    assert run.status == "suspended"
