"""ctx.follow, ctx.unfollow and ctx.emit: done once, and refused the same in every replay."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

import ravi_django
from ravi_django import access
from ravi_django.kernel import (
    ForbiddenError,
    TopicId,
)
from ravi_django.models import Follow, JournalEntry, Publication, Run, Status
from tests.support import world
from tests.support.runs import code, drive, make_run, take_over

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("hinted")]

NEWS = TopicId("news", "sport")


@pytest.fixture
def policy(monkeypatch):
    """The site's; refuses what is in `refused`."""

    class Policy(access.AccessPolicy):
        refused: set[str] = set()
        asked: list[tuple] = []

        def may_follow(self, user, agent, topic):
            self.asked.append(("follow", user, agent, topic))
            return "follow" not in self.refused

    Policy.refused, Policy.asked = set(), []
    made = Policy()
    monkeypatch.setattr(access, "policy", lambda: made)
    return made


def entries(run, kind):
    return list(JournalEntry.objects.filter(run=run, kind=kind).order_by("seq"))


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("dies", [1, 2, 3, 4, "end"])
def test_a_takeover_does_each_once(clock, hinted, dies, written):
    async def story(ctx, inbox):
        await ctx.follow("news/other", session=True)
        await ctx.follow(NEWS)
        await ctx.emit(NEWS, "goal")
        await ctx.unfollow(NEWS)
        return "done"

    code(story)
    run = drive(make_run(), dies=dies, written=written)

    run = take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, "done")
    assert list(Follow.objects.values_list("topic", flat=True)) == ["news/other"]
    assert Publication.objects.get().followers == 1
    assert set(hinted) <= {Publication.objects.get().id}
    kinds = JournalEntry.objects.filter(run=run, kind__in=["follow", "emit", "unfollow"]).order_by("seq")
    assert list(kinds.values_list("kind", flat=True)) == ["follow", "follow", "emit", "unfollow"]


@pytest.mark.parametrize("what", ["follow", "emit", "unfollow"])
def test_a_zombie_follows_and_publishes_nothing(what):
    async def story(ctx, inbox):
        if what == "follow":
            await ctx.follow(NEWS)
        elif what == "emit":
            await ctx.emit(NEWS, "goal")
        else:
            await ctx.unfollow("news/kept")

    agent = code(story)
    ravi_django.follow(agent, "news/kept")
    run = make_run()

    def lost(engine):
        append = engine.appender.append

        async def after_a_takeover(*args):
            await engine.database.call(Run.objects.filter(id=run.id).update, lease_epoch=99, lease_owner="other")
            return await append(*args)

        engine.appender.append = after_a_takeover

    drive(run, setup=lost)

    assert list(Follow.objects.values_list("topic", flat=True)) == ["news/kept"]
    assert not Publication.objects.exists()
    assert not JournalEntry.objects.filter(kind__in=["follow", "emit", "unfollow"]).exists()


def test_a_fork_publishes_anew_what_is_not_of_the_shared_past():
    async def story(ctx, inbox):
        await ctx.emit(NEWS, "past")
        await ctx.emit(NEWS, "future")
        await ctx.emit(NEWS, "own", id="mine")

    code(story)
    run = drive(make_run())
    first = entries(run, "emit")[0]

    drive(world.fork(run.id, first.seq))

    said = [
        body["payload"]["message"]["content"][0]["text"] for body in Publication.objects.values_list("body", flat=True)
    ]
    assert sorted(said) == ["future", "future", "own", "own", "past"]
    assert Publication.objects.values("scope").distinct().count() == 5


def test_the_default_ids_are_of_place_and_generation():
    async def story(ctx, inbox):
        for _ in range(2):
            await ctx.emit(NEWS, "same")
        if inbox[0].payload.message.text == "1":
            await ctx.continue_as_new("0")

    code(story)
    run = make_run(text="1")
    drive(run)
    drive(run)

    assert Publication.objects.values("message_id").distinct().count() == 4


@pytest.mark.parametrize("dies", [None, 1, 2])
def test_a_replay_repeats_a_refusal_whatever_the_policy_says_by_then(clock, policy, ada, dies):
    async def story(ctx, inbox):
        try:
            await ctx.follow(NEWS)
        except ForbiddenError as error:
            await ctx.unfollow(NEWS)
            return str(error)

    policy.refused = {"follow"}
    code(story)
    run = drive(make_run(owner=ada), dies=dies, written=True)
    if dies:
        policy.refused = set()
        run = take_over(clock, run)

    assert run.status == Status.COMPLETED, run.error
    assert run.output == "test/code may not follow news/sport for user 'ada'"
    assert not Follow.objects.exists() and not Publication.objects.exists()


def test_the_policy_is_asked_about_the_runs_owner(policy, ada):
    async def story(ctx, inbox):
        await ctx.follow(NEWS)
        await ctx.follow(NEWS)
        await ctx.emit(NEWS, "x")

    agent = code(story)
    drive(make_run(owner=ada))
    drive(make_run())

    assert [(user, str(asked)) for _, user, asked, _ in policy.asked] == [(ada, str(agent.id))] * 2


@pytest.mark.parametrize("what", ["follow", "emit"])
def test_a_run_whose_owner_is_deleted_is_not_the_systems(ada, what):
    async def story(ctx, inbox):
        await ctx.effects.database.call(type(ada).objects.filter(pk=ada.pk).delete)
        with pytest.raises(ForbiddenError, match="is no more"):
            await (ctx.follow(NEWS) if what == "follow" else ctx.emit(NEWS, "x"))

    code(story)
    run = drive(make_run(owner=ada))

    assert run.status == Status.COMPLETED, run.error
    assert not Follow.objects.exists() and not Publication.objects.exists()


def test_a_run_that_follows_nothing_asks_nothing():
    async def story(ctx, inbox):
        return "done"

    code(story)
    with CaptureQueriesContext(connection) as queries:
        drive(make_run())

    assert not [one for one in queries if "follow" in one["sql"] or "publication" in one["sql"]]
