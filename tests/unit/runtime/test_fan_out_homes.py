"""One who follows many topics has one home: one conversation, and one run at a time, whatever comes at once."""

from __future__ import annotations

import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from ravi_django import register
from ravi_django.kernel import PermanentError
from ravi_django.models import FeedItem, Follow, InboxMessage, Run, Session
from tests.support import world
from tests.support.feeds import FEED, TOPIC, follow, follow_row, inboxes, publish, waiting_runs, words
from tests.support.runs import BOUND_S, CodeAgent, drive, in_background, make_run, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)

ART = "news/art"


@pytest.fixture(autouse=True)
def _agent(monkeypatch):
    register(CodeAgent(print, key="feed"))
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")


@pytest.fixture
def user(db):
    return get_user_model().objects.create_user("ann")


def test_a_new_follow_is_at_home_where_the_other_one_is(user):
    session = Session.objects.create(owner=user, agent=FEED)
    stranger = get_user_model().objects.create_user("bob")
    follow(owner=user, home=session)

    one, _ = world.follow(FEED, ART, user=user)
    other, _ = world.follow(FEED, ART, user=stranger)
    own, _ = world.follow(FEED, ART, user=user, session=Session.objects.create(owner=user, agent=FEED))

    assert one.home_id == Follow.objects.get(id=one.id).home_id == session.id
    assert other.home_id is None
    assert own.home_id == own.session_id != session.id


def test_two_topics_of_an_idle_agent_come_to_one_run(user):
    follow(owner=user)
    follow(owner=user, topic=ART)

    world.fan_out_run(publish("tech").id)
    world.fan_out_run(publish("art", topic=ART).id)

    run = Run.objects.get()
    assert inboxes() == {run.id: ["tech", "art"]}
    assert set(Follow.objects.values_list("home_id", flat=True)) == {run.session_id}


def test_the_home_stays_when_the_follow_that_brought_it_goes(user):
    follow(owner=user, topic=ART)
    brought = follow(owner=user)
    world.fan_out_run(publish("tech").id)
    brought.delete()

    world.fan_out_run(publish("art", topic=ART).id)

    assert list(inboxes().values()) == [["tech", "art"]]


@pytest.mark.sqlite
def test_what_is_due_of_two_topics_at_once_comes_to_one_run(user, clock):
    publications = []
    for topic in (TOPIC, ART):
        one = follow(owner=user, topic=topic)
        publications.append(publish(topic, topic=topic))
        FeedItem.objects.create(follow=one, publication=publications[-1], due_at=clock.now)
    for _ in range(3):
        clock.advance(60)
        world.deliver_due()

    assert [sorted(given) for given in inboxes().values()] == [[ART, TOPIC]]


@on_postgresql
def test_who_has_the_first_follow_gives_the_home_and_nobody_waits_for_it(user):
    first = follow(owner=user)
    follow(owner=user, topic=ART)
    publication = publish("art", topic=ART)
    locked, over = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            Follow.objects.select_for_update(no_key=True).get(id=first.id)
            locked.set()
            assert over.wait(BOUND_S)

    future = in_background(hold)
    assert locked.wait(BOUND_S)
    batch = in_background(world.deliver_batch, publication.id, 100).result(BOUND_S)
    over.set()
    future.result(BOUND_S)

    assert (batch.delivered, batch.waiting, batch.at_once, Run.objects.count()) == (0, 1, True, 0)
    world.deliver_due()
    assert list(inboxes().values()) == [["art"]]


@on_postgresql
def test_a_home_that_was_given_before_the_lock_is_found(user, monkeypatch):
    first = follow(owner=user)
    follow(owner=user, topic=ART)
    publication = publish("art", topic=ART)
    session, look, looks = Session.objects.create(owner=user, agent=FEED), world.homes_look, []

    def given(ids):
        rows = look(ids)
        if not looks:
            in_background(lambda: Follow.objects.filter(id=first.id).update(home=session)).result(BOUND_S)
        looks.append(ids)
        return rows

    world.patch(monkeypatch, "homes_look", given)
    world.deliver_batch(publication.id, 100)

    assert Run.objects.get().session == session


@on_postgresql
def test_two_topics_at_the_same_moment_give_each_follower_one_home_and_one_run():
    users = get_user_model().objects.bulk_create(get_user_model()(username=f"u{number}") for number in range(50))
    for round_ in range(6):
        topics = [f"one/{round_}", f"two/{round_}"]
        agent = f"test/feed-{round_}"
        register(CodeAgent(print, key=f"feed-{round_}"))
        rows = [follow_row(agent, topic, owner=user) for user in users for topic in topics]
        Follow.objects.bulk_create(rows)
        publications = [publish(topic, topic=topic) for topic in topics]
        start = threading.Barrier(4)

        def work(publication, start=start):
            start.wait(BOUND_S)
            world.fan_out_run(publication.id)

        for future in [in_background(work, one) for one in (*publications, *reversed(publications))]:
            future.result(BOUND_S)
        for _ in range(10):
            FeedItem.objects.update(due_at="2000-01-01T00:00:00Z")
            world.deliver_due()

        assert not FeedItem.objects.exists()
        runs = Run.objects.filter(agent=agent)
        assert (runs.count(), Session.objects.filter(agent=agent).count()) == (50, 50)
        assert set(Follow.objects.filter(agent=agent).values_list("home_id", flat=True)) == set(
            runs.values_list("session_id", flat=True)
        )
        given = {}
        for run_id, body in InboxMessage.objects.filter(run__agent=agent).values_list("run_id", "body"):
            given.setdefault(run_id, []).append(words(body))
        assert {tuple(sorted(said)) for said in given.values()} == {tuple(topics)}


# --------------------------------------------------------------------------------------------------- who fails


def failing(user):
    async def agent(ctx, inbox):
        raise PermanentError("the agent's own")

    register(CodeAgent(agent, key="feed"))
    return follow(owner=user)


def drive_all():
    for run in Run.objects.filter(status="pending"):
        drive(run)


def test_who_has_just_failed_does_not_begin_anew_with_each_publication(user, clock):
    failing(user)
    for number in range(10):
        world.fan_out_run(publish(str(number)).id)
        drive_all()
        clock.advance(10)
        world.fan_out_sweep()
        drive_all()

    assert Run.objects.count() == 1
    clock.advance(300)
    world.fan_out_sweep()
    drive_all()
    world.fan_out_sweep()

    assert sorted(inboxes().values()) == [["0"], ["1+2+3+4+5+6+7+8+9"]]
    assert not FeedItem.objects.exists()


def test_who_has_run_well_since_does_not_rest(user, clock):
    one = failing(user)
    world.fan_out_run(publish("one").id)
    drive_all()
    one.refresh_from_db()
    later = make_run(FEED, owner=user, session=one.home)
    Run.objects.filter(id=later.id).update(status="completed")

    world.fan_out_run(publish("two").id)

    assert ["two"] in inboxes().values()


def test_nor_does_one_whose_person_has_begun_a_run(user, clock):
    one = failing(user)
    world.fan_out_run(publish("one").id)
    drive_all()
    one.refresh_from_db()
    (run,) = waiting_runs([one])

    world.fan_out_run(publish("two").id)

    assert inboxes()[run.id] == ["two"]
