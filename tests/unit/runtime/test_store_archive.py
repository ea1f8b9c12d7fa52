"""Ended trees are marked with their archives, together."""

from __future__ import annotations

import pytest

from ravi_django.models import Run, Status
from tests.support import world
from tests.support.runs import leased, make_run
from tests.support.world import make_blob

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


def archive(text):
    return make_blob(text.encode(), compress=True)


@pytest.mark.parametrize("blobs", [["a", "b", "a"], [None, None, None]], ids=["archives", "a table is the archive"])
def test_published_trees_are_marked_with_their_archives(clock, blobs):
    ended, also, third = runs = [make_run() for _ in range(3)]
    for run in runs:
        world.finish(leased(run), Status.COMPLETED, [])
    live, lost = leased().run, make_run()
    world.finish(leased(lost), Status.FAILED, [])
    archives = {str(run.id): (text and archive(text), 1) for run, text in zip(runs, blobs, strict=True)}

    marked = world.mark_many_published({**archives, str(live.id): (archive("c"), 1), str(lost.id): (archive("d"), 0)})

    assert sorted(marked) == sorted(archives)
    for run in (ended, also, third):
        run.refresh_from_db()
        blob = archives[str(run.id)][0]
        assert (run.published_at, run.archive_id) == (clock.now, blob and blob.id)
        assert blob is None or (bytes(run.archive.body), run.archive.size) == (blob.body, 1)
    assert set(Run.objects.filter(id__in=[live.id, lost.id]).values_list("published_at", "archive")) == {(None, None)}
