"""What a follower is given later: at most once in so many seconds, not while it has enough unread, bounded, once."""

import json
import logging
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext

from ravi_django import access
from ravi_django.kernel import Message
from ravi_django.models import FeedItem, Follow, InboxMessage, Publication, Run
from tests.support import arriving, world
from tests.support.feeds import (  # noqa: F401 - a fixture
    TOPIC,
    announced,
    emit,
    followers,
    inboxes,
    publish,
    read,
    unhinted,
    waiting_runs,
)

pytestmark = pytest.mark.django_db(transaction=True)

BATCH, SLOW = 2, 6  # three batches


def waiting(count=1, **fields):
    """Followers, and the runs that wait in their homes."""
    follows = followers(count, **fields)
    return follows, waiting_runs(follows)


def swept(clock, seconds):
    clock.advance(seconds)
    world.fan_out_sweep()


# ------------------------------------------------------------------------------------------------------- digests


def newest(run):
    return InboxMessage.objects.filter(run=run).order_by("id").last().body["payload"]["data"]


@pytest.mark.sqlite
def test_once_in_so_many_seconds_and_then_all_of_it_in_one_message(clock):
    _, (run,) = waiting(every_s=600)
    emit("one", "two", "three")
    swept(clock, 590)
    assert inboxes() == {run.id: ["one"]}
    swept(clock, 20)
    world.fan_out_sweep()
    assert (inboxes(), announced(run)) == ({run.id: ["one", "two+three"]}, 2)
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
    swept(clock, 61)
    message = Message.model_validate(InboxMessage.objects.order_by("id").last().body)
    assert (str(message.target), message.payload.data["topic"]) == (TOPIC, TOPIC)
    items = message.payload.data["items"]
    assert [item["publication"] for item in items] == [str(one.id) for one in publications[1:]]
    assert [item["payload"]["data"]["said"] for item in items] == ["two", "three"]
    assert {"topic", "message", "sender", "published_at"} < items[0].keys()
    payload = world.announcement(InboxMessage.objects.order_by("id").last().body)
    assert payload == {"topic": TOPIC, "publication": str(publications[2].id), "message": message.id, "items": 2}


def test_a_digest_that_is_too_large_comes_in_several_messages(clock, settings, monkeypatch):
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 6_000}

    def given_of(*said, topic):
        _, (run,) = waiting(every_s=60, topic=topic)
        emit(*said, topic=topic)
        swept(clock, 61)
        return inboxes()[run.id]

    given = given_of("first", *(f"{number}{'x' * 1_000}" for number in range(9)), topic=TOPIC)
    assert [words[0] for message in given[1:] for words in message.split("+")] == list("012345678")
    sizes = [len(json.dumps(body)) for body in InboxMessage.objects.values_list("body", flat=True)]
    assert len(sizes) > 2 and max(sizes) <= 6_000

    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 2_000}
    whole = ["one", "x" * 1_900, "y" * 1_900]
    assert given_of(*whole, topic="news/whole") == whole, "one that fills a message is delivered as it is"
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 6_000}
    world.patch(monkeypatch, "MOST_ITEMS", 3)
    assert given_of(*map(str, range(9)), topic="news/many") == ["0", "1+2+3", "4+5+6", "7+8"]


def test_digests_of_many_are_one_body_and_few_statements(clock, django_assert_max_num_queries):
    waiting(50, every_s=60)
    emit("one", "two", "three")
    clock.advance(61)
    with django_assert_max_num_queries(40):
        world.fan_out_sweep()
    assert list(inboxes().values()) == [["one", "two+three"]] * 50


def test_who_was_switched_off_or_has_unfollowed_meanwhile_gets_no_digest(clock, caplog, ada):
    _, (run,) = waiting(every_s=60, owner=ada)
    (gone,), (other,) = waiting(every_s=60)
    emit("one", "two")
    ada.is_active = False
    ada.save()
    Follow.objects.filter(id=gone.id).delete()

    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        swept(clock, 61)

    assert inboxes() == {run.id: ["one"], other.id: ["one"]}
    assert [one.delivered for one in Publication.objects.order_by("id")] == [2, 1]
    assert caplog.records[0].action == "fan_out.given_up"


# ------------------------------------------------------------------------------------------------- back-pressure


@pytest.fixture
def unread(settings):
    settings.RAVI = {**settings.RAVI, "FEED_UNREAD": 1}


def test_who_has_enough_unread_gets_the_rest_in_one_message_once_it_has_read(clock, settings):
    settings.RAVI = {**settings.RAVI, "FEED_UNREAD": 2}
    _, (slow, quick) = waiting(2)

    for number in range(6):
        emit(str(number))
        read(quick)
        clock.advance(1)
    assert (inboxes()[slow.id], announced(slow)) == (["0", "1"], 2)
    assert inboxes()[quick.id] == list("012345")
    swept(clock, 60)
    assert announced(slow) == 2

    read(slow)
    swept(clock, 600)

    assert inboxes()[slow.id] == ["0", "1", "2+3+4+5"]
    assert not FeedItem.objects.exists()
    assert {one.delivered for one in Publication.objects.all()} == {2}


def test_one_who_does_not_read_is_looked_at_once_a_minute_and_changes_one_row(clock, unread):
    waiting()
    emit("first", *map(str, range(30)))
    before, looks = None, []

    for _ in range(100):
        clock.advance(10)
        before = dict(FeedItem.objects.order_by("id").values_list("id", "due_at"))
        world.fan_out_sweep()
        after = dict(FeedItem.objects.order_by("id").values_list("id", "due_at"))
        assert before.keys() == after.keys()
        looks.append([before[one] != after[one] for one in after])

    looks = [changed for changed in looks if any(changed)]
    assert looks == [[True] + [False] * 29] * len(looks)
    assert 10 < len(looks) < 20


@pytest.mark.sqlite
def test_so_many_wait_and_the_oldest_are_dropped_which_the_follower_is_told(clock, monkeypatch, caplog, unread):
    world.patch(monkeypatch, "BACKLOG_MOST", 5)
    (slow, _), (run, quick) = waiting(2)

    with caplog.at_level(logging.WARNING, "ravi.fan_out"):
        for number in range(9):
            emit(str(number))
            read(quick)
    assert FeedItem.objects.filter(follow=slow).count() == 5
    assert Follow.objects.get(id=slow.id).dropped == 3
    assert {record.action for record in caplog.records} == {"fan_out.dropped"}
    read(run)
    swept(clock, 400)

    assert inboxes() == {run.id: ["0", "4+5+6+7+8"], quick.id: list("012345678")}
    assert newest(run)["dropped"] == 3
    assert world.announcement(InboxMessage.objects.filter(run=run).last().body)["dropped"] == 3
    read(run)
    emit("next", "more", "most")
    read(run)
    swept(clock, 400)
    assert inboxes()[run.id][2:] == ["next", "more+most"]
    assert "dropped" not in newest(run)
    world.patch(monkeypatch, "BACKLOG_MOST", 1)
    emit("dropped too", "left")
    read(run)
    swept(clock, 400)
    assert (newest(run)["dropped"], len(newest(run)["items"])) == (1, 1), "one that is left tells of it too"


def test_a_backlog_of_a_thousand_is_as_many_statements(clock, unread):
    counts = []
    for many in (5, 50):
        waiting(topic=f"t/{many}")
        emit("first", *map(str, range(many)), topic=f"t/{many}")
        with CaptureQueriesContext(connection) as captured:
            emit("last", topic=f"t/{many}")
        counts.append(len(captured))
    assert counts[0] == counts[1]


# ----------------------------------------------------------------------------------------------- what goes wrong


@pytest.fixture
def refuse(monkeypatch):
    """Rows of these follows cannot be written."""
    refused = set()

    def checked(write):
        def written(rows):
            if refused & {row.follow_id for row in rows}:
                raise IntegrityError("no such row")
            return write(rows)

        return written

    for verb in ("to_new_runs", "to_live_runs"):
        world.patch(monkeypatch, verb, checked(getattr(world, verb)))
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


def test_it_is_tried_again_and_given_up_after_some_tries_for_all_to_see(clock, refuse, caplog):
    late, never = followers(2)
    refuse.update([late.id, never.id])
    emit("hello")

    for _ in range(4):
        before = FeedItem.objects.earliest("due_at").due_at
        swept(clock, 1000)
        assert FeedItem.objects.earliest("due_at").due_at > before
    refuse.discard(late.id)
    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        for _ in range(world.DIGESTS_TRIES - 1 - 4):
            assert FeedItem.objects.filter(follow=never).exists()
            swept(clock, 1000)

    assert list(inboxes().values()) == [["hello"]]
    assert not FeedItem.objects.exists()
    assert Publication.objects.get().delivered == 1
    assert caplog.records[-1].action == "fan_out.given_up"
    assert str(never.id) in caplog.messages[-1] and str(late.id) not in caplog.messages[-1]


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


class Fails(access.AccessPolicy):
    topics: set[str] = set()

    def may_receive(self, users, topic):
        if str(topic) in self.topics:
            get_user_model().objects.raw("SELECT nonsense")[:1]
            raise RuntimeError("the site's")
        return None


def test_a_policy_that_raises_for_one_topic_puts_that_one_off_and_the_others_come(clock, settings, caplog, ada):
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": f"{__name__}.Fails", "FEED_UNREAD": 10}
    runs = []
    for topic in (TOPIC, "news/art"):
        runs += waiting(topic=topic, every_s=60, owner=ada)[1]
        emit("one", "two", topic=topic)

    Fails.topics = {TOPIC}
    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        swept(clock, 61)
    assert [inboxes()[run.id] for run in runs] == [["one"], ["one", "two"]]
    assert [record.action for record in caplog.records] == ["fan_out.failed"]
    assert not world.has_due()  # put off

    Fails.topics = set()
    swept(clock, 400)
    assert [inboxes()[run.id] for run in runs] == [["one", "two"]] * 2
    assert {one.delivered for one in Publication.objects.all()} == {1}


# ---------------------------------------------------------------- who cannot be given it now stands in nobody's way


def have_waited(slow, clock):
    """What was published waits for these, and for one behind them, who could be given it: its run."""
    (healthy,), (run,) = waiting()
    publication = publish("hello")
    FeedItem.objects.bulk_create(
        FeedItem(follow=one, publication=publication, due_at=clock.now - timedelta(seconds=100 - place))
        for place, one in enumerate([*slow, healthy])
    )
    Publication.objects.update(done_at=world.now())
    return publication, run


WHYS = ["enough unread", "has failed", "an error", "an unknown agent", "the policy raises", "said it itself"]


@pytest.mark.parametrize("why", WHYS)
def test_one_sweep_goes_on_behind_those_that_cannot_be_given_it(clock, settings, refuse, ada, why):
    more = {"FAN_OUT_BATCH": 1 if why == "said it itself" else BATCH}
    more |= {"FEED_UNREAD": 1} if why == "enough unread" else {}
    more |= {"ACCESS_POLICY": f"{__name__}.Fails"} if why == "the policy raises" else {}
    settings.RAVI = {**settings.RAVI, **more}
    Fails.topics = {TOPIC}
    fields = {"an unknown agent": {"agent": "nobody/knows"}, "the policy raises": {"owner": ada}}.get(why, {})
    slow = followers(1 if why == "said it itself" else SLOW, **fields)
    if why == "enough unread":
        for run in waiting_runs(slow):
            arriving.publish(run, {"said": "earlier"})
    elif why == "has failed":
        waiting_runs(slow, status="failed", waiting_on=None, finished_at=clock.now, created_at=clock.now)
    elif why == "an error":
        refuse.update(one.id for one in slow)
    publication, run = have_waited(slow, clock)
    if why == "said it itself":
        Publication.objects.filter(id=publication.id).update(run=waiting_runs(slow)[0])

    world.fan_out_sweep()
    assert {run_id for run_id, said in inboxes().items() if said == ["hello"]} == {run.id}
    assert not FeedItem.objects.filter(due_at__lte=clock.now).exists()
    assert FeedItem.objects.count() == (0 if why == "said it itself" else SLOW)
    assert FeedItem.objects.filter(tries=1).count() >= (SLOW if why == "an error" else 0)


def test_one_sweep_looks_at_a_bounded_number_all_the_same(clock, monkeypatch, settings):
    settings.RAVI = {**settings.RAVI, "FAN_OUT_BATCH": BATCH}
    world.patch(monkeypatch, "FAN_OUT_BATCHES", 2)
    have_waited(followers(SLOW, agent="nobody/knows"), clock)
    world.fan_out_sweep()
    assert FeedItem.objects.filter(due_at__lte=clock.now).count() == SLOW + 1 - 2 * BATCH
    world.fan_out_sweep()
    assert not world.has_due()
    assert Run.objects.filter(inbox__isnull=False).count() == 1
