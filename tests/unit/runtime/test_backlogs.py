"""What waits for a follower that does not read: bounded, cheap to look at, and nobody else's to bear."""

from __future__ import annotations

import logging

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django import register
from ravi_django.access import AccessPolicy
from ravi_django.models import FeedItem, Follow, InboxMessage, Publication, Signal
from tests.support import world
from tests.support.feeds import followers, inboxes, publish, read, waiting_runs
from tests.support.runs import CodeAgent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _agent(monkeypatch, settings):
    settings.RAVI = {**settings.RAVI, "FEED_UNREAD": 1}
    register(CodeAgent(print, key="feed"))
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")


def emit(*said, topic="news/tech"):
    for words in said:
        world.fan_out_run(publish(words, topic=topic).id)


@pytest.mark.sqlite
def test_so_many_wait_and_the_oldest_are_dropped_which_the_follower_is_told(clock, monkeypatch, caplog):
    world.patch(monkeypatch, "BACKLOG_MOST", 5)
    slow, other = followers(2)
    run, quick = waiting_runs([slow, other])

    with caplog.at_level(logging.WARNING, "ravi.fan_out"):
        for number in range(9):
            emit(str(number))
            read(quick)
    assert FeedItem.objects.filter(follow=slow).count() == 5
    assert Follow.objects.get(id=slow.id).dropped == 3
    assert {record.action for record in caplog.records} == {"fan_out.dropped"}
    read(run)
    clock.advance(400)
    world.fan_out_sweep()

    assert inboxes() == {run.id: ["0", "4+5+6+7+8"], quick.id: list("012345678")}
    assert InboxMessage.objects.filter(run=run).order_by("id").last().body["payload"]["data"]["dropped"] == 3
    assert Signal.objects.filter(run=run).order_by("id").last().payload["dropped"] == 3
    read(run)
    emit("next", "more", "most")
    read(run)
    clock.advance(400)
    world.fan_out_sweep()
    assert inboxes()[run.id][2:] == ["next", "more+most"]
    assert "dropped" not in InboxMessage.objects.filter(run=run).order_by("id").last().body["payload"]["data"]


def test_one_item_that_is_left_tells_of_those_that_were_dropped_too(clock, monkeypatch):
    world.patch(monkeypatch, "BACKLOG_MOST", 1)
    (run,) = waiting_runs(followers(1))
    emit("one", "two", "three")
    read(run)
    clock.advance(400)
    world.fan_out_sweep()

    data = InboxMessage.objects.order_by("id").last().body["payload"]["data"]
    assert (data["dropped"], len(data["items"])) == (1, 1)


def test_a_look_at_one_who_does_not_read_changes_one_row_however_much_waits(clock):
    waiting_runs(followers(1))
    emit("first", *map(str, range(30)))
    before = dict(FeedItem.objects.values_list("id", "due_at"))
    clock.advance(60)

    world.fan_out_sweep()

    after = dict(FeedItem.objects.values_list("id", "due_at"))
    assert before.keys() == after.keys()
    assert [before[one] != after[one] for one in sorted(after)] == [True] + [False] * 29


def test_what_is_more_than_one_message_comes_in_the_next_at_once(clock, monkeypatch, settings):
    settings.RAVI = {**settings.RAVI, "FEED_UNREAD": 10}
    world.patch(monkeypatch, "MOST_ITEMS", 3)
    (run,) = waiting_runs(followers(1, every_s=60))
    emit(*map(str, range(9)))
    clock.advance(61)

    world.fan_out_sweep()

    assert inboxes()[run.id] == ["0", "1+2+3", "4+5+6", "7+8"]


def test_a_backlog_of_a_thousand_is_as_many_statements(clock):
    counts = []
    for many in (5, 50):
        follows = followers(1, topic=f"t/{many}")
        waiting_runs(follows)
        emit("first", *map(str, range(many)), topic=f"t/{many}")
        with CaptureQueriesContext(connection) as captured:
            emit("last", topic=f"t/{many}")
        counts.append(len(captured))

    assert counts[0] == counts[1]


# ------------------------------------------------------------------------------------- a policy that raises


class Fails(AccessPolicy):
    topics: set[str] = set()

    def may_receive(self, users, topic):
        if str(topic) in self.topics:
            get_user_model().objects.raw("SELECT nonsense")[:1]
            raise RuntimeError("the site's")
        return None


def test_a_policy_that_raises_for_one_topic_puts_that_one_off_and_the_others_come(clock, settings, caplog):
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": f"{__name__}.Fails", "FEED_UNREAD": 10}
    user = get_user_model().objects.create_user("ann")
    runs = {}
    for topic in ("news/tech", "news/art"):
        (runs[topic],) = waiting_runs(followers(1, topic=topic, every_s=60, owner=user))
        emit("one", "two", topic=topic)
    clock.advance(61)

    Fails.topics = {"news/tech"}
    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        world.fan_out_sweep()
    assert [inboxes()[run.id] for run in runs.values()] == [["one"], ["one", "two"]]
    assert [record.action for record in caplog.records] == ["fan_out.failed"]
    assert not world.has_due()  # put off

    Fails.topics = set()
    clock.advance(400)
    world.fan_out_sweep()
    assert [inboxes()[run.id] for run in runs.values()] == [["one", "two"]] * 2
    assert {one.delivered for one in Publication.objects.all()} == {1}
