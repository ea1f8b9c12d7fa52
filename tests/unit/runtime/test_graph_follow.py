"""ctx.follow and ctx.unfollow: an agent's follows, which outlive its runs."""

from __future__ import annotations

import pytest

import ravi_django
from ravi_django.kernel import (
    ControlPayload,
    InvalidInputError,
    Message,
    TopicId,
)
from ravi_django.models import FeedItem, Follow, JournalEntry, Status
from tests.support import world
from tests.support.runs import code, drive, make_run, patch_append

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("hinted")]

NEWS = TopicId("news", "sport")


def test_a_follow_is_of_the_agent_and_its_owner_not_of_a_run(ada):
    async def story(ctx, inbox):
        await ctx.follow(NEWS)

    code(story)
    first = make_run(owner=ada, tenant="acme", metadata={"variables": {"likes": "tennis"}})
    drive(first)
    drive(make_run(owner=ada, tenant="acme"))

    follow = Follow.objects.get()
    assert (follow.agent, follow.topic, follow.owner, follow.tenant) == ("test/code", "news/sport", ada, "acme")
    assert (follow.session, follow.every_s) == (None, 0)
    assert follow.metadata == {"variables": {"likes": "tennis"}}, "what it was begun with"


def test_other_owners_and_tenants_follow_for_themselves(ada):
    async def story(ctx, inbox):
        await ctx.follow(NEWS)

    code(story)
    for whose in ({"owner": ada}, {"owner": ada, "tenant": "acme"}, {}, {"tenant": "acme"}):
        drive(make_run(**whose))

    assert Follow.objects.count() == 4


def test_deliveries_go_to_the_session_where_the_agent_is_at_work():
    async def story(ctx, inbox):
        await ctx.follow(NEWS)
        if inbox[0].payload.message.text == "stay":
            await ctx.sleep_until_signal("go")

    code(story)
    ended = drive(make_run(text="end"))
    assert Follow.objects.get().home_id == ended.session_id

    staying = drive(make_run(text="stay"))
    assert Follow.objects.get().home_id == staying.session_id, "nobody is at work in the first one any more"

    drive(make_run(text="end"))
    assert Follow.objects.get().home_id == staying.session_id


def test_with_session_it_is_of_that_conversation_alone():
    async def story(ctx, inbox):
        await ctx.follow(NEWS, session=True)
        await ctx.follow(NEWS)

    code(story)
    run = drive(make_run())

    assert set(Follow.objects.values_list("session", "home")) == {
        (run.session_id, run.session_id),
        (None, run.session_id),
    }


def test_following_anew_is_one_look_and_the_journal_row(monkeypatch):
    queries = []

    async def story(ctx, inbox):
        await ctx.follow(NEWS)

    seen = world.follows_known

    def counted(follow):
        queries.append(follow.topic)
        return seen(follow)

    code(story)
    drive(make_run())
    row = Follow.objects.get()
    world.patch(monkeypatch, "follows_known", counted)
    world.patch(monkeypatch, "add_follow", None)  # nothing beside the journal is written

    run = drive(make_run(session=row.home))

    assert (run.status, queries) == (Status.COMPLETED, ["news/sport"])
    assert Follow.objects.get().id == row.id


def test_a_follow_that_is_deleted_meanwhile_is_there_again(monkeypatch):
    """Until the run's row is written to, anybody may still end the follow."""

    async def story(ctx, inbox):
        await ctx.follow(NEWS)

    code(story)
    drive(make_run())
    home = Follow.objects.get().home
    append = world.fence_append

    def deleted_first(*args):
        Follow.objects.all().delete()
        return append(*args)

    patch_append(monkeypatch, deleted_first)
    run = drive(make_run(session=home))

    assert run.status == Status.COMPLETED, run.error
    assert Follow.objects.get().topic == "news/sport"


def test_a_loop_that_continues_as_new_follows_once_and_for_all():
    async def story(ctx, inbox):
        await ctx.follow(NEWS)
        left = int(inbox[0].payload.message.text)
        if left:
            await ctx.continue_as_new(str(left - 1))

    code(story)
    run = make_run(text="3")
    for _ in range(4):
        drive(run)

    assert (run.status, run.generation) == (Status.COMPLETED, 3)
    assert Follow.objects.count() == 1


def test_every_s_is_kept_until_another_is_given():
    given = [0, 60, 0, 30]

    async def story(ctx, inbox):
        await ctx.follow(NEWS, every_s=given[int(inbox[0].payload.message.text)])

    code(story)
    found = []
    for number in range(4):
        drive(make_run(text=str(number)))
        found.append(Follow.objects.get().every_s)

    assert found == [0, 60, 60, 30]


@pytest.mark.parametrize(
    ("what", "field"),
    [
        (lambda ctx: ctx.follow("a/b/c/d"), "topic"),
        (lambda ctx: ctx.follow("news/ü"), "topic"),
        (lambda ctx: ctx.follow(7), "topic"),
        (lambda ctx: ctx.follow(NEWS, every_s=-1), "every_s"),
        (lambda ctx: ctx.follow(NEWS, every_s=True), "every_s"),
        (lambda ctx: ctx.unfollow("a//b"), "topic"),
        (lambda ctx: ctx.emit("/", "x"), "topic"),
        (lambda ctx: ctx.emit(NEWS, "x", id=""), "id"),
        (lambda ctx: ctx.emit(NEWS, "x", id="i" * 201), "id"),
        (lambda ctx: ctx.emit(NEWS, "x", id="a\0b"), "id"),
        (lambda ctx: ctx.emit(NEWS, Message(target=NEWS, payload=ControlPayload(signal="abort"))), "data"),
    ],
)
def test_bad_input_names_the_parameter_and_writes_nothing(what, field):
    async def story(ctx, inbox):
        with pytest.raises(InvalidInputError) as caught:
            await what(ctx)
        return caught.value.field

    code(story)
    run = drive(make_run())

    assert (run.status, run.output) == (Status.COMPLETED, field), run.error
    assert not JournalEntry.objects.filter(kind__in=["follow", "unfollow", "emit"]).exists()


def test_unfollowing_ends_exactly_this_follow(ada):
    async def story(ctx, inbox):
        await ctx.follow(NEWS, session=True)
        await ctx.follow("news/other")
        await ctx.follow(NEWS)
        await ctx.unfollow(NEWS)

    ravi_django.follow(code(story), NEWS, user=ada)
    run = drive(make_run())

    left = Follow.objects.order_by("id").values_list("topic", "owner", "session")
    assert list(left) == [
        ("news/sport", ada.pk, None),
        ("news/sport", None, run.session_id),
        ("news/other", None, None),
    ]


def test_unfollowing_drops_what_was_still_to_be_given():
    async def story(ctx, inbox):
        await ctx.unfollow(NEWS, session=True)
        await ctx.unfollow(NEWS)

    follow, _ = ravi_django.follow(code(story), NEWS)
    publication = ravi_django.emit(NEWS, "goal")
    FeedItem.objects.create(follow=follow, publication=publication, due_at=publication.created_at)

    run = drive(make_run())

    assert (run.status, Follow.objects.count(), FeedItem.objects.count()) == (Status.COMPLETED, 0, 0)
