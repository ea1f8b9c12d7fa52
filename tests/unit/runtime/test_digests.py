"""What a follower is given later: at most once in so many seconds, not while it has enough unread, never twice."""

from __future__ import annotations

import json
import logging

import pytest
from django.contrib.auth import get_user_model
from django.db import IntegrityError

from ravi_django import register
from ravi_django.kernel import Message
from ravi_django.models import FeedItem, Follow, InboxMessage, Publication, Run, Signal
from tests.support import world
from tests.support.feeds import TOPIC, followers, inboxes, publish, read, told, waiting_runs
from tests.support.runs import CodeAgent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _agent(monkeypatch):
    register(CodeAgent(print, key="feed"))
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")


def emit(*said):
    for words in said:
        world.fan_out_run(publish(words).id)


def waiting(count=1, **fields):
    """Followers, and the runs that wait in their homes."""
    follows = followers(count, **fields)
    return follows, waiting_runs(follows)


# ------------------------------------------------------------------------------------------------------- digests


@pytest.mark.sqlite
def test_once_in_so_many_seconds_and_then_all_of_it_in_one_message(clock):
    _, (run,) = waiting(every_s=600)

    emit("one", "two", "three")
    assert inboxes() == {run.id: ["one"]}
    clock.advance(590)
    world.fan_out_sweep()
    assert inboxes() == {run.id: ["one"]}
    clock.advance(20)
    world.fan_out_sweep()
    world.fan_out_sweep()

    assert inboxes() == {run.id: ["one", "two+three"]}
    assert told(run) == 2
    emit("four")
    assert inboxes()[run.id][2:] == []
    clock.advance(601)
    emit("five")
    world.fan_out_sweep()
    assert inboxes()[run.id][2:] == ["four+five"]  # what waits comes first: nothing overtakes it
    assert not FeedItem.objects.exists()


def test_a_digest_names_what_is_in_it(clock):
    waiting(every_s=60)
    publications = [publish(words) for words in ("one", "two", "three")]
    world.fan_out_run(publications[0].id)
    clock.advance(61)
    world.fan_out_sweep()

    message = Message.model_validate(InboxMessage.objects.order_by("id").last().body)

    assert str(message.target) == TOPIC
    assert message.payload.data["topic"] == TOPIC
    items = message.payload.data["items"]
    assert [item["publication"] for item in items] == [str(one.id) for one in publications[1:]]
    assert [item["payload"]["data"]["said"] for item in items] == ["two", "three"]
    assert {"topic", "message", "sender", "published_at"} < items[0].keys()
    payload = Signal.objects.order_by("id").last().payload
    assert payload == {"topic": TOPIC, "publication": str(publications[2].id), "message": message.id, "items": 2}


def test_an_idle_follower_gets_its_digest_in_a_run(clock):
    followers(1, every_s=60)
    emit("one", "two", "three")
    Run.objects.update(status="completed")
    clock.advance(61)

    world.fan_out_sweep()

    assert sorted(inboxes().values()) == [["one"], ["two+three"]]


def test_a_digest_that_is_too_large_comes_in_several_messages(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 6_000}
    _, (run,) = waiting(every_s=60)
    emit("first", *(f"{number}{'x' * 1_000}" for number in range(9)))
    clock.advance(61)

    world.fan_out_sweep()

    given = inboxes()[run.id]
    assert [words[0] for message in given[1:] for words in message.split("+")] == list("012345678")
    sizes = [len(json.dumps(body)) for body in InboxMessage.objects.values_list("body", flat=True)]
    assert len(sizes) > 2 and max(sizes) <= 6_000


def test_one_that_fills_a_message_by_itself_is_delivered_as_it_is(clock, settings):
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 2_000}
    _, (run,) = waiting(every_s=60)
    emit("one", "x" * 1_900, "y" * 1_900)
    clock.advance(61)

    world.fan_out_sweep()

    assert inboxes()[run.id] == ["one", "x" * 1_900, "y" * 1_900]


def test_digests_of_many_are_one_body_and_few_statements(clock, django_assert_max_num_queries):
    waiting(50, every_s=60)
    emit("one", "two", "three")
    clock.advance(61)

    with django_assert_max_num_queries(40):
        world.fan_out_sweep()

    assert list(inboxes().values()) == [["one", "two+three"]] * 50


def test_an_owner_who_went_away_meanwhile_gets_no_digest(clock, caplog):
    user = get_user_model().objects.create_user("ann")
    _, (run,) = waiting(every_s=60, owner=user)
    emit("one", "two")
    user.is_active = False
    user.save()
    clock.advance(61)

    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        world.fan_out_sweep()

    assert inboxes() == {run.id: ["one"]}
    assert [one.delivered for one in Publication.objects.order_by("id")] == [1, 0]
    assert caplog.records[0].action == "fan_out.given_up"


# ------------------------------------------------------------------------------------------------- back-pressure


def test_who_has_enough_unread_gets_the_rest_in_one_message_once_it_has_read(clock, settings):
    settings.RAVI = {**settings.RAVI, "FEED_UNREAD": 2}
    _, (slow, quick) = waiting(2)

    for number in range(6):
        emit(str(number))
        read(quick)
        clock.advance(1)
    assert (inboxes()[slow.id], told(slow)) == (["0", "1"], 2)
    assert inboxes()[quick.id] == list("012345")
    clock.advance(60)
    world.fan_out_sweep()
    assert told(slow) == 2

    read(slow)
    clock.advance(600)
    world.fan_out_sweep()

    assert inboxes()[slow.id] == ["0", "1", "2+3+4+5"]
    assert not FeedItem.objects.exists()
    assert {one.delivered for one in Publication.objects.all()} == {2}


def test_it_is_looked_at_the_less_often_the_longer_it_does_not_read(clock, settings):
    settings.RAVI = {**settings.RAVI, "FEED_UNREAD": 1}
    waiting()
    emit("one", "two")
    looks = []

    for _ in range(100):
        clock.advance(10)
        due = FeedItem.objects.get().due_at
        world.fan_out_sweep()
        looks.append(FeedItem.objects.get().due_at != due)

    assert looks[0] and 3 < sum(looks) < 20


# ----------------------------------------------------------------------------------------------- what goes wrong


@pytest.fixture
def refuse(monkeypatch):
    """Rows of these follows cannot be written."""
    refused = set()
    begin, tell = world.delivery_rows_begin, world.delivery_rows_tell

    def checked(write):
        def written(rows):
            if refused & {row.follow_id for row in rows}:
                raise IntegrityError("no such row")
            return write(rows)

        return written

    world.patch(monkeypatch, "delivery_rows_begin", checked(begin))
    world.patch(monkeypatch, "delivery_rows_tell", checked(tell))
    return refused


@pytest.mark.sqlite
def test_a_follower_whose_rows_make_an_error_is_set_aside_and_the_others_have_theirs(refuse, caplog):
    follows = followers(9)
    refuse.add(follows[4].id)

    with caplog.at_level(logging.WARNING, "ravi.fan_out"):
        emit("hello")

    assert list(inboxes().values()) == [["hello"]] * 8
    item = FeedItem.objects.get()
    assert (item.follow_id, item.tries) == (follows[4].id, 1)
    assert caplog.records[0].action == "fan_out.follower_failed"
    assert Publication.objects.get().done_at is not None


def test_of_many_that_fail_not_each_is_looked_for(refuse, monkeypatch):
    world.patch(monkeypatch, "DELIVERIES_APART", 2)
    follows = followers(16)
    refuse.update(follow.id for follow in follows[8:])

    emit("hello")

    assert Run.objects.count() == 8
    assert FeedItem.objects.count() == 8


def test_it_is_tried_again_ever_later_and_delivered_when_that_can_be(clock, refuse):
    (one,) = followers(1)
    refuse.add(one.id)
    emit("hello")

    waits = []
    for _ in range(4):
        before = FeedItem.objects.get().due_at
        clock.advance(1000)
        world.fan_out_sweep()
        waits.append(FeedItem.objects.get().due_at > before)
    refuse.clear()
    clock.advance(1000)
    world.fan_out_sweep()

    assert waits == [True] * 4
    assert list(inboxes().values()) == [["hello"]]
    assert Publication.objects.get().delivered == 1


def test_it_is_given_up_after_some_tries_for_all_to_see(clock, refuse, caplog):
    (one,) = followers(1)
    refuse.add(one.id)
    emit("hello")

    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        for _ in range(world.DIGESTS_TRIES - 1):
            assert FeedItem.objects.exists()
            clock.advance(1000)
            world.fan_out_sweep()

    assert not FeedItem.objects.exists()
    assert Publication.objects.get().delivered == 0
    assert caplog.records[-1].action == "fan_out.given_up"
    assert str(one.id) in caplog.text


def test_who_has_unfollowed_gets_nothing_that_was_set_aside(clock):
    (one,), (run,) = waiting(every_s=60)
    emit("one", "two")
    Follow.objects.filter(id=one.id).delete()
    clock.advance(61)

    world.fan_out_sweep()

    assert inboxes() == {run.id: ["one"]}


def test_a_digest_that_was_rolled_back_comes_once(clock, monkeypatch):
    _, (run,) = waiting(every_s=60)
    emit("one", "two", "three")
    clock.advance(61)

    def die(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        world.patch(patched, "digests_settle", die)
        with pytest.raises(KeyboardInterrupt):
            world.digests_deliver_due(100)
    world.fan_out_sweep()

    assert inboxes() == {run.id: ["one", "two+three"]}
