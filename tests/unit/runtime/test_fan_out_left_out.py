"""Who is given nothing, or not yet: the publisher itself, agents that are unknown or switched off, another topic's
followers while one does not come to its end."""

from __future__ import annotations

import logging

import pytest
from django.contrib.auth import get_user_model

from ravi_django import register
from ravi_django.kernel import AgentId
from ravi_django.models import Agent, FeedItem, Publication, Run
from tests.support import world
from tests.support.feeds import FEED, TOPIC, WAITS, follow, followers, inboxes, publish, told, waiting_runs
from tests.support.runs import CodeAgent, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def hinted(monkeypatch):
    register(CodeAgent(print, key="feed"))
    world.silence(monkeypatch, "fan_out_wake")
    found = []
    world.patch(monkeypatch, "fan_out_hint", found.append)
    return found


@pytest.fixture
def user(db):
    return get_user_model().objects.create_user("ann")


# ----------------------------------------------------------------------------------------------- the publisher


def published_by(agent, owner=None, run=None):
    body = {"sender": str(AgentId.parse(agent))}
    row = publish("hello", owner=owner)
    Publication.objects.filter(id=row.id).update(body={**row.body, **body}, run=run)
    return row


@pytest.mark.parametrize("live", [False, True])
def test_what_an_agent_publishes_does_not_come_back_to_it(user, live):
    other = get_user_model().objects.create_user("bob")
    mine, theirs = follow(owner=user), follow(owner=other)
    for one in (mine, theirs) if live else ():
        one.home = make_run(FEED, owner=one.owner).session
        one.save()
    publication = published_by(FEED, user)

    world.fan_out_run(publication.id)

    got = [Run.objects.get(id=run_id).owner for run_id, given in inboxes().items() if "hello" in given]
    assert got == [other]
    publication.refresh_from_db()
    assert (publication.followers, publication.delivered, publication.done_at is None) == (2, 1, False)


def test_nor_does_a_run_that_was_handed_over_get_what_it_has_published(user):
    one = follow("test/other", owner=user)
    register(CodeAgent(print, key="other"))
    run = make_run("test/other", owner=user)
    Run.objects.filter(id=run.id).update(status="suspended", waiting_on=WAITS)
    one.home = run.session
    one.save()

    world.fan_out_run(published_by(FEED, user, run).id)

    assert told(run) == 0
    assert not FeedItem.objects.exists()


def test_an_agent_that_answers_what_it_hears_is_no_loop(user):
    async def agent(ctx, inbox):
        await ctx.follow(TOPIC)
        await ctx.emit(TOPIC, {"said": "echo"})

    register(CodeAgent(agent, key="feed"))
    follow(owner=user)
    world.fan_out_run(publish("hello").id)
    for _ in range(5):
        for run in Run.objects.filter(status="pending"):
            drive(run)
        for publication in Publication.objects.filter(done_at=None):
            world.fan_out_run(publication.id)

    assert (Run.objects.count(), Publication.objects.count()) == (1, 2)


# ---------------------------------------------------------------------------------------------- unknown agents


def test_an_agent_that_this_process_does_not_know_gets_it_where_it_is_known(clock, caplog):
    followers(1, agent="test/unknown")

    with caplog.at_level(logging.WARNING, "ravi.fan_out"):
        world.fan_out_run(publish("one").id)
        world.fan_out_run(publish("two").id)
    assert not Run.objects.exists()
    assert "test/unknown" in caplog.text
    clock.advance(60)
    world.fan_out_sweep()
    assert FeedItem.objects.count() == 2

    register(CodeAgent(print, key="unknown"))
    clock.advance(400)
    world.fan_out_sweep()

    assert list(inboxes().values()) == [["one+two"]]
    assert {one.delivered for one in Publication.objects.all()} == {1}


def test_it_is_given_up_for_all_to_see_when_nobody_does(clock, caplog):
    followers(1, agent="test/unknown")
    world.fan_out_run(publish("one").id)

    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        for _ in range(world.DIGESTS_TRIES):
            clock.advance(400)
            world.fan_out_sweep()

    assert not FeedItem.objects.exists()
    assert caplog.records[-1].action == "fan_out.given_up"
    assert Publication.objects.get().delivered == 0


def test_one_that_is_switched_off_is_skipped_with_a_line_in_the_log(caplog):
    Agent.objects.create(address="test/off", enabled=False)
    followers(3, agent="test/off")
    assert "test/off" not in world.agents_by_address

    with caplog.at_level(logging.WARNING, "ravi.fan_out"):
        world.fan_out_run(publish("one").id)

    assert not FeedItem.objects.exists()
    (record,) = caplog.records
    assert (record.action, "3 follows" in record.getMessage()) == ("fan_out.disabled", True)
    assert Publication.objects.get().done_at is not None


# ---------------------------------------------------------------------------------------------- deleted owners


def test_nobodys_follow_does_not_come_to_the_run_of_a_user_who_was_deleted(user):
    """Such a run is not the system's: it holds what the user has said."""
    (run,) = waiting_runs(followers(1, owner=user))
    user.delete()
    follow()

    world.fan_out_run(publish("hello").id)

    assert told(run) == 0


# ------------------------------------------------------------------------------------------------ other topics


def test_many_publications_of_one_topic_do_not_starve_another(clock, monkeypatch):
    followers(1)
    followers(1, topic="news/art")
    hot = [publish("hot") for _ in range(3 * world.FAN_OUT_BATCHES)]
    art = publish("art", topic="news/art")
    clock.advance(60)

    assert sorted(world.fan_out_unfinished(world.FAN_OUT_BATCHES)) == [hot[0].id, art.id]
    world.fan_out_sweep()

    assert ["art"] in inboxes().values()


def test_topics_that_fail_do_not_stand_before_the_others(clock, monkeypatch):
    for number in range(2 * world.FAN_OUT_BATCHES):
        followers(1, topic=f"bad/{number}")
        publish("bad", topic=f"bad/{number}")
    followers(1)
    good = publish("good")
    clock.advance(60)
    real = world.deliver_batch

    def deliver_batch(publication_id, *args):
        if publication_id != good.id:
            raise RuntimeError("the site's")
        return real(publication_id, *args)

    world.patch(monkeypatch, "deliver_batch", deliver_batch)
    for _ in range(60):  # by chance: one in two sweeps comes to it
        world.fan_out_sweep()

    assert list(inboxes().values()) == [["good"]]


def test_the_sweep_has_the_next_publication_of_the_topic_hinted(clock, hinted):
    followers(1)
    first = publish("one")
    publish("two")
    clock.advance(60)

    world.fan_out_sweep()
    assert hinted == [first.id]
    world.fan_out_sweep()

    assert hinted == [first.id]
    assert not Publication.objects.filter(done_at=None).exists()
