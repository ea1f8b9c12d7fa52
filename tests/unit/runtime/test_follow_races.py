"""Many who follow, unfollow and emit at the same moment."""

from __future__ import annotations

from threading import Barrier

import pytest
from django.db import transaction

from ravi_django import emit, follow, unfollow
from ravi_django.kernel import (
    IdempotencyMismatchError,
    TopicId,
)
from ravi_django.models import FeedItem, Follow, Publication
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import code, in_background, on_postgresql, somebody_waits_for_a_lock, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("hinted")]

NEWS = TopicId("news", "sport")


@pytest.fixture(autouse=True)
def agent():
    async def story(ctx, inbox):
        return "done"

    return code(story)


def at_once(number, function):
    """Call `function` on so many threads at the same moment; what each gives."""
    barrier = Barrier(number)

    def one(place):
        barrier.wait(seconds(20))
        return function(place)

    return [future.result(BOUND_S) for future in [in_background(one, place) for place in range(number)]]


@on_postgresql
def test_twenty_who_follow_at_once_get_one_row(agent, ada):
    found = at_once(20, lambda place: follow(agent, NEWS, user=ada))

    assert Follow.objects.count() == 1
    assert len({row.id for row, _ in found}) == 1
    assert [created for _, created in found].count(True) == 1


@on_postgresql
def test_twenty_emits_with_one_id_are_one_publication(agent, ada, hinted):
    follow(agent, NEWS)

    found = at_once(20, lambda place: emit(NEWS, {"text": "goal"}, user=ada, id="g1"))

    assert Publication.objects.count() == 1
    assert {(row.id, row.message_id, row.followers) for row in found} == {(found[0].id, "g1", 1)}
    assert hinted == [found[0].id]


@on_postgresql
def test_of_two_bodies_with_one_id_one_is_published(agent):
    def one(place):
        try:
            return emit(NEWS, f"goal {place}", id="g1").body["payload"]["message"]["content"][0]["text"]
        except IdempotencyMismatchError:
            return None

    found = at_once(10, one)

    assert len([text for text in found if text]) == 1
    assert Publication.objects.count() == 1


@on_postgresql
def test_following_and_unfollowing_at_once_never_fails(agent):
    def one(place):
        for _ in range(5):
            follow(agent, NEWS)[0] if place % 2 else unfollow(agent, NEWS)
        return True

    assert all(at_once(8, one))
    assert Follow.objects.count() <= 1


@on_postgresql
def test_a_repeat_waits_for_the_one_that_is_not_committed_yet(agent, hinted):
    with transaction.atomic():
        first = emit(NEWS, "goal", id="g1")
        second = in_background(lambda: emit(NEWS, "goal", id="g1"))
        until(somebody_waits_for_a_lock)

    assert second.result(BOUND_S).id == first.id


@on_postgresql
def test_a_follow_that_is_just_being_given_something_is_deleted_with_that(agent):
    found, _ = follow(agent, NEWS)
    publication = emit(NEWS, "goal")

    with transaction.atomic():
        Follow.objects.select_for_update(no_key=True).get(id=found.id)  # as the fan-out does
        FeedItem.objects.create(follow=found, publication=publication, due_at=publication.created_at)
        deleted = in_background(lambda: unfollow(agent, NEWS))
        until(somebody_waits_for_a_lock)

    assert deleted.result(BOUND_S) is True
    assert not FeedItem.objects.exists() and not Follow.objects.exists()
