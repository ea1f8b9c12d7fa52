"""One who follows many topics has one home and one run at a time; a publisher gets nothing of its own."""

import logging
from functools import partial

import pytest
from django.contrib.auth import get_user_model

from ravi_django import register
from ravi_django.kernel import AgentId, PermanentError
from ravi_django.models import FeedItem, Follow, InboxMessage, Publication, Run, Session
from tests.support import world
from tests.support.feeds import (  # noqa: F401 - a fixture
    FEED,
    TOPIC,
    WAITS,
    announced,
    emit,
    follow,
    follow_row,
    followers,
    inboxes,
    publish,
    unhinted,
    waiting_runs,
    words,
)
from tests.support.runs import BOUND_S, CodeAgent, at_once, drive, in_background, make_run, on_postgresql, uncommitted

pytestmark = pytest.mark.django_db(transaction=True)

ART = "news/art"


def drive_all():
    for run in Run.objects.filter(status="pending"):
        drive(run)


def test_a_new_follow_is_at_home_where_the_other_one_is(ada):
    session = Session.objects.create(owner=ada, agent=FEED)
    stranger = get_user_model().objects.create_user("bob")
    follow(owner=ada, home=session)
    one, _ = world.follow(FEED, ART, user=ada)
    other, _ = world.follow(FEED, ART, user=stranger)
    own, _ = world.follow(FEED, ART, user=ada, session=Session.objects.create(owner=ada, agent=FEED))
    assert one.home_id == Follow.objects.get(id=one.id).home_id == session.id
    assert other.home_id is None
    assert own.home_id == own.session_id != session.id


def test_two_topics_of_an_idle_agent_come_to_one_run_and_the_home_stays(ada):
    follow(owner=ada, topic=ART)
    brought = follow(owner=ada)
    emit("tech")
    run = Run.objects.get()
    assert set(Follow.objects.values_list("home_id", flat=True)) >= {run.session_id}
    brought.delete()
    emit("art", topic=ART)
    assert inboxes() == {run.id: ["tech", "art"]}
    assert Follow.objects.get().home_id == run.session_id


@pytest.mark.sqlite
def test_what_is_due_of_two_topics_at_once_comes_to_one_run(ada, clock):
    for topic in (TOPIC, ART):
        one = follow(owner=ada, topic=topic)
        FeedItem.objects.create(follow=one, publication=publish(topic, topic=topic), due_at=clock.now)
    for _ in range(3):
        clock.advance(60)
        world.deliver_due()
    assert [sorted(given) for given in inboxes().values()] == [[ART, TOPIC]]


@on_postgresql
def test_who_has_the_first_follow_gives_the_home_and_nobody_waits_for_it(ada):
    first = follow(owner=ada)
    follow(owner=ada, topic=ART)
    publication = publish("art", topic=ART)
    with uncommitted(lambda: Follow.objects.select_for_update(no_key=True).get(id=first.id)):
        batch = in_background(world.deliver_batch, publication.id, 100).result(BOUND_S)
    assert (batch.delivered, batch.waiting, batch.at_once, Run.objects.count()) == (0, 1, True, 0)
    world.deliver_due()
    assert list(inboxes().values()) == [["art"]]


@on_postgresql
def test_a_home_that_was_given_before_the_lock_is_found(ada, monkeypatch):
    first = follow(owner=ada)
    follow(owner=ada, topic=ART)
    publication = publish("art", topic=ART)
    session, look, looks = Session.objects.create(owner=ada, agent=FEED), world.homes_look, []

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
    for round_ in range(3):
        topics, agent = [f"one/{round_}", f"two/{round_}"], f"test/feed-{round_}"
        register(CodeAgent(print, key=f"feed-{round_}"))
        Follow.objects.bulk_create(follow_row(agent, topic, owner=user) for user in users for topic in topics)
        works = [partial(world.fan_out_run, publish(topic, topic=topic).id) for topic in topics]
        at_once(*works, *reversed(works))
        for _ in range(10):
            FeedItem.objects.update(due_at="2000-01-01T00:00:00Z")
            world.deliver_due()

        assert not FeedItem.objects.exists()
        runs = Run.objects.filter(agent=agent)
        homes = set(Follow.objects.filter(agent=agent).values_list("home_id", flat=True))
        assert (runs.count(), Session.objects.filter(agent=agent).count()) == (50, 50)
        assert homes == set(runs.values_list("session_id", flat=True))
        given = {}
        for run_id, body in InboxMessage.objects.filter(run__agent=agent).values_list("run_id", "body"):
            given.setdefault(run_id, []).append(words(body))
        assert {tuple(sorted(said)) for said in given.values()} == {tuple(topics)}


def failing(user):
    async def agent(ctx, inbox):
        raise PermanentError("the agent's own")

    register(CodeAgent(agent, key="feed"), replace=True)
    return follow(owner=user)


def test_who_has_just_failed_does_not_begin_anew_with_each_publication(ada, clock):
    failing(ada)
    for number in range(10):
        emit(str(number))
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


@pytest.mark.parametrize("since", ["run well", "begun by a person"])
def test_who_has_run_since_does_not_rest(ada, clock, since):
    one = failing(ada)
    emit("one")
    drive_all()
    one.refresh_from_db()
    if since == "run well":
        later = make_run(FEED, owner=ada, session=one.home)
        Run.objects.filter(id=later.id).update(status="completed")
    else:
        waiting_runs([one])

    emit("two")
    assert ["two"] in inboxes().values()


def published_by(agent, owner=None, run=None):
    row = publish("hello", owner=owner)
    Publication.objects.filter(id=row.id).update(body={**row.body, "sender": str(AgentId.parse(agent))}, run=run)
    return row


@pytest.mark.parametrize("live", [False, True])
def test_what_an_agent_publishes_does_not_come_back_to_it(ada, live):
    other = get_user_model().objects.create_user("bob")
    for one in (follow(owner=ada), follow(owner=other)):
        if live:
            one.home = make_run(FEED, owner=one.owner).session
            one.save()
    publication = published_by(FEED, ada)

    world.fan_out_run(publication.id)

    got = [Run.objects.get(id=run_id).owner for run_id, given in inboxes().items() if "hello" in given]
    assert got == [other]
    publication.refresh_from_db()
    assert (publication.followers, publication.delivered, publication.done_at is None) == (2, 1, False)


def test_nor_does_a_run_that_was_handed_over_get_what_it_has_published(ada):
    one = follow("test/other", owner=ada)
    register(CodeAgent(print, key="other"))
    run = make_run("test/other", owner=ada)
    Run.objects.filter(id=run.id).update(status="suspended", waiting_on=WAITS)
    one.home = run.session
    one.save()
    world.fan_out_run(published_by(FEED, ada, run).id)
    assert announced(run) == 0
    assert not FeedItem.objects.exists()


def test_an_agent_that_this_process_does_not_know_gets_it_where_it_is_known(clock, caplog):
    def later():
        clock.advance(400)
        world.fan_out_sweep()

    followers(1, agent="test/unknown")
    with caplog.at_level(logging.WARNING, "ravi.fan_out"):
        emit("one", "two")
    assert "test/unknown" in caplog.text
    later()
    assert (Run.objects.count(), FeedItem.objects.count()) == (0, 2)
    register(CodeAgent(print, key="unknown"))
    later()
    assert list(inboxes().values()) == [["one+two"]]
    assert {one.delivered for one in Publication.objects.all()} == {1}


def test_nobodys_follow_does_not_come_to_the_run_of_a_user_who_was_deleted(ada):
    """Such a run is not the system's: it holds what the user has said."""
    (run,) = waiting_runs(followers(1, owner=ada))
    ada.delete()
    follow()
    emit("hello")
    assert announced(run) == 0
