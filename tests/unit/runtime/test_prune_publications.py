"""What was emitted goes, once it is delivered and old."""

from __future__ import annotations

import pytest

from ravi_django import emit, follow
from ravi_django.models import FeedItem, Publication
from tests.support import world
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 24 * 3600.0
KEEP = {"publications": 30 * DAY}


@pytest.fixture(autouse=True)
def _not_hinted(monkeypatch):
    world.silence(monkeypatch, "fan_out_hint")


def test_the_old_ones_that_are_delivered_go(clock, monkeypatch):
    async def story(ctx, inbox): ...

    world.patch(monkeypatch, "PUBLICATIONS_ROWS", 2)
    for _ in range(3):
        emit("news/a", "nobody follows")
    found, _ = follow(code(story), "news/b")
    under_way, waiting = emit("news/b", "under way"), emit("news/b", "in a digest")
    FeedItem.objects.create(follow=found, publication=waiting, due_at=world.now())
    Publication.objects.filter(id=waiting.id).update(done_at=world.now())

    clock.advance(30 * DAY)
    assert world.prune(KEEP)["publications"] == 0
    clock.advance(1)
    young = emit("news/a", "young")
    assert world.prune(KEEP, dry_run=True)["publications"] == 3
    assert world.prune(KEEP)["publications"] == 3

    assert set(Publication.objects.values_list("id", flat=True)) == {under_way.id, waiting.id, young.id}
    assert "publications" not in world.prune({"journal": 0})
