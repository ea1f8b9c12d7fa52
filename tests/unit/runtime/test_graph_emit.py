"""ctx.emit: what is published, to whom, and by which id."""

from __future__ import annotations

import asyncio

import pytest

import ravi_django
from ravi_django.kernel import (
    ChatMessage,
    ChatPayload,
    IdempotencyMismatchError,
    Message,
    PermanentError,
    TopicId,
)
from ravi_django.models import Follow, JournalEntry, Publication, Status
from tests.support.runs import code, drive, make_run, take_over

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("hinted")]

NEWS = TopicId("news", "sport")


def entries(run, kind):
    return list(JournalEntry.objects.filter(run=run, kind=kind).order_by("seq"))


def test_what_is_emitted_goes_to_those_who_follow_by_then(hinted, ada):
    async def story(ctx, inbox):
        await ctx.emit(NEWS, "goal")

    agent = code(story)
    followers = [ravi_django.follow(agent, NEWS, tenant="acme", user=user)[0] for user in (None, ada)]
    ravi_django.follow(agent, NEWS)  # of another tenant
    run = drive(make_run(owner=ada, tenant="acme"))

    row = Publication.objects.get()
    assert (row.topic, row.tenant, row.owner, row.run_id) == ("news/sport", "acme", ada, run.id)
    assert (row.followers, row.last, row.upto, row.done_at) == (2, max(one.id for one in followers), None, None)
    assert hinted == [row.id]
    (emitted,) = entries(run, "emit")
    assert emitted.result == "goal"
    assert emitted.request == {"message": row.message_id, "publication": str(row.id), "followers": 2, "new": True}


def test_what_nobody_follows_is_done_at_once(hinted):
    async def story(ctx, inbox):
        await ctx.emit(NEWS, "goal")

    code(story)
    drive(make_run())

    row = Publication.objects.get()
    assert (row.followers, row.last, row.done_at is not None, hinted) == (0, None, True, [])


@pytest.mark.parametrize(
    ("given", "kind", "inner"),
    [
        ("goal", "chat", "goal"),
        ({"text": "goal"}, "chat", "goal"),
        ({"text": "goal", "by": "ann"}, "data", {"text": "goal", "by": "ann"}),
        ({"text": 1}, "data", {"text": 1}),
        ([1, None], "data", {"value": [1, None]}),
        (None, "data", {"value": None}),
        ("a\0b", "chat", "a\ufffdb"),
        ({"is": object}, "data", {"is": "<class 'object'>"}),
        (float("nan"), "data", {"value": None}),
        (Message(target=NEWS, payload=ChatPayload(message=ChatMessage.of("user", "goal"))), "chat", "goal"),
    ],
)
def test_what_followers_are_given(given, kind, inner):
    async def story(ctx, inbox):
        await ctx.emit(NEWS, given)

    code(story)
    run = drive(make_run())

    message = Message.model_validate(Publication.objects.get().body)
    assert run.status == Status.COMPLETED, run.error
    assert message.payload.kind == kind
    assert (message.payload.message.text if kind == "chat" else message.payload.data) == inner
    assert (message.target, str(message.sender), message.reply_to) == (NEWS, "test/code", None)
    if kind == "chat":
        assert message.payload.message.role == "user"


def test_a_bare_type_is_its_default_source():
    async def story(ctx, inbox):
        await ctx.follow("news")
        await ctx.emit(TopicId("news"), 1)

    code(story)
    drive(make_run())

    assert Publication.objects.get().followers == 1
    assert Follow.objects.get().topic == "news/default"


def test_a_namespace_is_kept():
    async def story(ctx, inbox):
        await ctx.follow(TopicId("news", "sport", "uk"))
        await ctx.emit("news/sport", 1)
        await ctx.emit("uk/news/sport", 2)

    code(story)
    drive(make_run())

    assert dict(Publication.objects.values_list("topic", "followers")) == {"news/sport": 0, "uk/news/sport": 1}


def test_an_id_of_ones_own_is_published_once(hinted):
    async def story(ctx, inbox):
        await ctx.follow(NEWS)
        await ctx.emit(NEWS, "goal", id="g1")
        await asyncio.gather(*(ctx.emit(NEWS, "goal", id="g1") for _ in range(3)))
        await ctx.emit("news/other", "goal", id="g1")

    code(story)
    run = drive(make_run())

    assert run.status == Status.COMPLETED, run.error
    assert sorted(Publication.objects.values_list("topic", "message_id")) == [
        ("news/other", "g1"),
        ("news/sport", "g1"),
    ]
    assert len(hinted) == 1
    assert [row.request["new"] for row in entries(run, "emit")] == [True, False, False, False, True]


@pytest.mark.parametrize("dies", [None, 2, 3])
def test_an_id_with_another_message_is_refused_in_every_replay(clock, dies):
    async def story(ctx, inbox):
        await ctx.emit(NEWS, "goal", id="g1")
        try:
            await ctx.emit(NEWS, "own goal", id="g1")
        except IdempotencyMismatchError as error:
            await ctx.emit("news/other", "told")
            return str(error)

    code(story)
    run = drive(make_run(), dies=dies, written=True)
    if dies:
        run = take_over(clock, run)

    assert run.status == Status.COMPLETED, run.error
    assert "'g1' belongs to another message" in run.output
    assert sorted(Publication.objects.values_list("topic", flat=True)) == ["news/other", "news/sport"]


def test_what_is_too_large_is_refused(settings):
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 100}

    async def story(ctx, inbox):
        await ctx.emit(NEWS, "x" * 98)
        with pytest.raises(PermanentError, match="101 bytes, the limit is 100"):
            await ctx.emit(NEWS, "x" * 99)

    code(story)
    run = drive(make_run())

    assert (run.status, Publication.objects.count()) == (Status.COMPLETED, 1), run.error


def test_a_row_of_before_publications_is_recalled(clock):
    async def story(ctx, inbox):
        await ctx.emit("t", {"old": 1})
        await ctx.emit(NEWS, "new")

    code(story)
    run = drive(make_run(), dies=1, written=True)
    JournalEntry.objects.filter(kind="emit").update(request=None)
    Publication.objects.all().delete()

    run = take_over(clock, run)

    assert (run.status, run.error) == (Status.COMPLETED, None)
    assert Publication.objects.get().topic == "news/sport"
