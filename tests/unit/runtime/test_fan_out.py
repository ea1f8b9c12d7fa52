"""A publication is delivered to each follower once: to the run that waits, or as the first message of a new one."""

from __future__ import annotations

import logging

import pytest
from django.contrib.auth import get_user_model

from ravi_django import register
from ravi_django.access import AccessPolicy
from ravi_django.models import Agent, FeedItem, Follow, InboxMessage, Publication, Run, Session, Signal, uuid7
from tests.support import world
from tests.support.feeds import FEED, TOPIC, WAITS, follow, followers, inboxes, publish, told, waiting_runs
from tests.support.runs import CodeAgent, make_run
from tests.support.world import being_changed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _agent(monkeypatch):
    async def nothing(ctx, inbox):
        return None

    register(CodeAgent(nothing, key="feed"))
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")


@pytest.fixture
def user(db):
    return get_user_model().objects.create_user("ann")


def deliver(publication, limit=100):
    return world.deliver_batch(publication.id, limit)


# ------------------------------------------------------------------------------------------------------- to whom


@pytest.mark.sqlite
def test_a_follow_that_was_deleted_is_not_waited_for():
    assert being_changed([uuid7()]) == []


@pytest.mark.sqlite
def test_an_idle_agent_gets_a_run_with_the_message_and_no_signal(user):
    one = follow(owner=user, tenant="", metadata={"variables": {"a": 1}})
    publication = publish("hello")

    batch = deliver(publication)

    run = Run.objects.get()
    assert (run.agent, run.owner, run.status, run.metadata) == (FEED, user, "pending", {"variables": {"a": 1}})
    assert inboxes() == {run.id: ["hello"]}
    assert InboxMessage.objects.get().message_id == publication.id.hex
    assert InboxMessage.objects.get().body["target"] == f"topic:{TOPIC}"
    assert not Signal.objects.exists()
    assert (batch.delivered, batch.done, batch.woken) == (1, True, [run.id])
    one.refresh_from_db()
    assert one.home_id == run.session_id
    assert (run.session.agent, run.session.owner, run.session.title) == (FEED, user, TOPIC)


@pytest.mark.sqlite
def test_a_run_that_waits_in_its_home_is_told_and_woken():
    (one,) = followers(1)
    (run,) = waiting_runs([one])
    publication = publish("hello")

    batch = deliver(publication)

    run.refresh_from_db()
    assert (run.status, run.wake_seq, run.wake_at) == ("pending", 1, None)
    assert inboxes() == {run.id: ["hello"]}
    signal = Signal.objects.get()
    body = publication.body
    assert signal.payload == {"topic": TOPIC, "publication": str(publication.id), "message": body["id"]}
    assert (signal.name, signal.key, signal.woke) == ("new_feed_item", f"pub:{publication.id.hex}", True)
    assert batch.woken == [run.id]


@pytest.mark.sqlite
@pytest.mark.parametrize("where", ["at home", "elsewhere"])
def test_a_run_that_a_delivery_wakes_does_not_go_before_a_new_chat(clock, user, where):
    if where == "at home":
        waiting_runs(followers(1))
    else:
        follow(owner=user)
        run = make_run(FEED, owner=user)
        Run.objects.filter(id=run.id).update(status="suspended", waiting_on=WAITS)

    (woken,) = deliver(publish("hello")).woken
    chat = make_run("test/chat")

    assert [world.claim_next("w", ["test/chat", FEED]).run_id for _ in range(2)] == [chat.id, woken]


@pytest.mark.parametrize("status", ["pending", "running", "blocked"])
def test_a_run_in_its_home_that_does_not_wait_keeps_its_status(status):
    (one,) = followers(1)
    (run,) = waiting_runs([one], status=status, waiting_on=None)

    deliver(publish("hello"))

    run.refresh_from_db()
    assert (run.status, run.wake_seq, told(run)) == (status, 1, 1)
    assert Run.objects.count() == 1


def test_a_run_elsewhere_that_waits_for_items_becomes_its_home(user):
    one = follow(owner=user)
    runs = [make_run(FEED, owner=user) for _ in range(3)]
    Run.objects.filter(id__in=[run.id for run in runs[:2]]).update(status="suspended", waiting_on=WAITS)
    Run.objects.filter(id=runs[2].id).update(status="suspended", waiting_on=[{"kind": "message", "name": ""}])

    deliver(publish("hello"))

    assert [told(run) for run in runs] == [0, 1, 0]  # the newest of those that wait for them
    one.refresh_from_db()
    assert one.home_id == runs[1].session_id


def test_a_follow_of_one_session_never_leaves_it(user):
    session = Session.objects.create(owner=user, agent=FEED)
    follow(owner=user, session=session, home=session)
    other = make_run(FEED, owner=user)
    Run.objects.filter(id=other.id).update(status="suspended", waiting_on=WAITS)

    deliver(publish("hello"))

    assert told(other) == 0
    assert Run.objects.exclude(id=other.id).get().session == session


@pytest.mark.parametrize("whose", ["owner", "tenant", "agent"])
def test_a_run_of_somebody_else_is_not_told(user, whose):
    other = get_user_model().objects.create_user("bob")
    follow(owner=user)
    fields = {"owner": user, "tenant": "", "agent": FEED}
    fields |= {"owner": {"owner": other}, "tenant": {"tenant": "t"}, "agent": {"agent": "test/other"}}[whose]
    run = make_run(fields.pop("agent"), **fields)
    Run.objects.filter(id=run.id).update(status="suspended", waiting_on=WAITS)

    deliver(publish("hello"))

    assert told(run) == 0
    assert Run.objects.count() == 2


def test_a_run_of_another_owner_in_the_home_is_not_told_but_queued_behind_once(user):
    session = Session.objects.create(owner=user, agent=FEED)
    follow(owner=user, session=session, home=session)
    stranger = make_run(FEED, session=session)

    deliver(publish("one"))
    deliver(publish("two"))

    queued = Run.objects.get(status="queued")
    assert (queued.session, queued.owner) == (session, user)
    assert inboxes() == {stranger.id: [""], queued.id: ["one", "two"]}


def test_the_agent_that_is_a_row_runs_in_its_newest_version():
    Agent.objects.create(address="react/row", source=Agent.Source.ADMIN, version=7)
    follow("react/row")

    deliver(publish("hello"))

    assert Run.objects.get().agent_version == 7


def test_another_tenant_another_topic_and_who_follows_later_get_nothing():
    followers(1, tenant="t")
    followers(1, topic="news/art")
    followers(1)
    publication = publish("hello")
    followers(1)

    batch = deliver(publication)

    assert (batch.delivered, batch.done, Run.objects.count()) == (1, True, 1)


# -------------------------------------------------------------------------------------------------- permissions


def test_an_owner_who_is_not_active_gets_nothing(user):
    follow(owner=user)
    get_user_model().objects.filter(id=user.id).update(is_active=False)

    batch = deliver(publish("hello"))

    assert (batch.delivered, batch.done, Run.objects.count()) == (0, True, 0)
    assert Publication.objects.get().delivered == 0


def test_nor_does_a_run_of_theirs_that_waits(user):
    (one,) = followers(1, owner=user)
    (run,) = waiting_runs([one])
    get_user_model().objects.filter(id=user.id).update(is_active=False)

    deliver(publish("hello"))

    assert told(run) == 0


@pytest.mark.parametrize("agent", ["test/off", "react/off"])
def test_an_agent_that_is_switched_off_gets_nothing(agent):
    if agent == "test/off":
        register(CodeAgent(print, key="off"))
        Agent.objects.create(address=agent, enabled=False)
    if agent == "react/off":
        Agent.objects.create(address=agent, enabled=False, source=Agent.Source.ADMIN)
    followers(1, agent=agent)
    (run,) = waiting_runs(list(Follow.objects.all()))
    followers(1)

    batch = deliver(publish("hello"))

    assert batch.delivered == 1
    assert told(run) == 0


class Choosy(AccessPolicy):
    asked: list[tuple[list[str], str]] = []

    def may_receive(self, users, topic):
        self.asked.append((sorted(user.username for user in users), str(topic)))
        return {user.pk for user in users if user.username != "bob"}


def test_the_policy_is_asked_once_a_batch_and_only_where_a_site_has_one(user, settings):
    Choosy.asked.clear()
    bob = get_user_model().objects.create_user("bob")
    follow(owner=user)
    followers(2, owner=bob)
    followers(1)
    publication = publish("hello")
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": f"{__name__}.Choosy"}

    world.fan_out_run(publication.id)

    assert Choosy.asked == [(["ann", "bob"], TOPIC)]
    assert sorted(str(run.owner) for run in Run.objects.all()) == ["None", "ann"]
    assert Publication.objects.get().delivered == 2


# ------------------------------------------------------------------------------------------------------ batches


def test_batch_after_batch_goes_on_where_the_one_before_stopped():
    followers(5)
    publication = publish("hello")

    sizes = []
    while (batch := deliver(publication, 2)) is not None:
        sizes.append((batch.delivered, batch.done))

    assert sizes == [(2, False), (2, False), (1, True)]
    assert [len(given) for given in inboxes().values()] == [1] * 5
    publication.refresh_from_db()
    assert (publication.delivered, publication.upto) == (5, publication.last)
    assert publication.done_at is not None


@pytest.mark.sqlite
def test_a_batch_that_was_rolled_back_is_delivered_again_and_nothing_twice(monkeypatch):
    followers(4)
    publication = publish("hello")
    deliver(publication, 2)

    def die(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        world.patch(patched, "fan_out_set_all_aside", die)
        with pytest.raises(KeyboardInterrupt):
            deliver(publication, 2)
    assert Run.objects.count() == 2
    deliver(publication, 2)

    assert [len(given) for given in inboxes().values()] == [1] * 4
    assert deliver(publication, 2) is None


def test_a_large_message_goes_to_fewer_at_once(monkeypatch):
    world.patch(monkeypatch, "FAN_OUT_BATCH_BYTES", 5_000)
    followers(5)
    publication = publish("x" * 1_000)

    assert deliver(publication, 100).delivered < 5


def test_the_publications_of_a_topic_come_one_after_the_other():
    (one,) = followers(1)
    (run,) = waiting_runs([one])
    first, second = publish("one"), publish("two")

    assert deliver(second).publication_id == first.id
    assert deliver(second).publication_id == second.id
    assert inboxes() == {run.id: ["one", "two"]}


def test_a_task_is_bounded_and_hints_the_rest(monkeypatch, settings):
    settings.RAVI = {**settings.RAVI, "FAN_OUT_BATCH": 2}
    world.patch(monkeypatch, "FAN_OUT_BATCHES", 2)
    hinted = []
    world.patch(monkeypatch, "fan_out_hint", hinted.append)
    followers(5)
    publication = publish("hello")

    world.fan_out_run(publication.id)
    assert (Run.objects.count(), hinted) == (4, [publication.id])

    world.fan_out_run(publication.id)
    assert (Run.objects.count(), hinted) == (5, [publication.id])


def test_the_sweep_goes_on_with_what_no_hint_has_reached(clock, settings):
    settings.RAVI = {**settings.RAVI, "FAN_OUT_BATCH": 1}
    followers(2)
    publish("hello")
    world.fan_out_sweep()
    assert not Run.objects.exists()

    clock.advance(60)
    world.fan_out_sweep()
    assert Run.objects.count() == 1
    world.sweeper_sweep(lambda run_ids: [])

    assert Run.objects.count() == 2
    assert world.fan_out_unfinished(10) == []


def test_a_policy_that_raises_holds_up_its_topic_alone(clock, monkeypatch, caplog):
    followers(1)
    followers(1, topic="news/art")
    publish("hello")
    art = publish("hello", topic="news/art")
    clock.advance(60)
    real = world.deliver_batch

    def deliver_batch(publication_id, *args):
        if publication_id != art.id:
            raise RuntimeError("the site's")
        return real(publication_id, *args)

    world.patch(monkeypatch, "deliver_batch", deliver_batch)
    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        world.fan_out_sweep()

    assert Run.objects.count() == 1
    assert caplog.records[0].action == "fan_out.failed"


def test_two_follows_that_come_to_one_run_give_it_one_message(user):
    session = Session.objects.create(owner=user, agent=FEED)
    follow(owner=user, home=session)
    follow(owner=user, home=session, session=session)
    publication = publish("hello")

    deliver(publication)
    world.deliver_due()

    assert list(inboxes().values()) == [["hello"]]
    assert not FeedItem.objects.exists()
    publication.refresh_from_db()
    assert (publication.followers, publication.delivered) == (2, 2)


def test_nobody_is_looked_for_when_nothing_was_published(django_assert_max_num_queries):
    with django_assert_max_num_queries(2):
        world.fan_out_sweep()
