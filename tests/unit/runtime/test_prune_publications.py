"""What was emitted goes, once it is delivered and old."""

from __future__ import annotations

import pytest

from ravi_django import emit, follow
from ravi_django.models import FeedItem, Publication
from ravi_django.runtime import clock as clocks
from ravi_django.runtime import prune
from ravi_django.runtime.store import publications
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 24 * 3600.0
KEEP = {"publications": 30 * DAY}


@pytest.fixture(autouse=True)
def _not_hinted(monkeypatch):
    monkeypatch.setattr("ravi_django.runtime.fan_out.hint", lambda publication_id: None)


def test_the_old_ones_that_are_delivered_go(clock, monkeypatch):
    async def story(ctx, inbox): ...

    monkeypatch.setattr(publications, "ROWS", 2)
    for _ in range(3):
        emit("news/a", "nobody follows")
    found, _ = follow(code(story), "news/b")
    under_way, waiting = emit("news/b", "under way"), emit("news/b", "in a digest")
    FeedItem.objects.create(follow=found, publication=waiting, due_at=clocks.now())
    Publication.objects.filter(id=waiting.id).update(done_at=clocks.now())

    clock.advance(30 * DAY)
    assert prune.prune(KEEP)["publications"] == 0
    clock.advance(1)
    young = emit("news/a", "young")
    assert prune.prune(KEEP, dry_run=True)["publications"] == 3
    assert prune.prune(KEEP)["publications"] == 3

    assert set(Publication.objects.values_list("id", flat=True)) == {under_way.id, waiting.id, young.id}
    assert "publications" not in prune.prune({"journal": 0})
