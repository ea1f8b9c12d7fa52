"""ctx.follow, ctx.unfollow, ctx.emit: an agent's follows outlive its runs; each is done once, in every replay."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

import ravi_django
from ravi_django import access
from ravi_django.kernel import (
    ChatMessage,
    ChatPayload,
    ControlPayload,
    DataPayload,
    ForbiddenError,
    IdempotencyMismatchError,
    Message,
    PermanentError,
    TopicId,
)
from ravi_django.models import FeedItem, Follow, InboxMessage, JournalEntry, Publication, Run, Status
from tests.support import world
from tests.support.cases import case, refused
from tests.support.runs import code, drive, every_death, make_run, patch_append, take_over

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("hinted")]

NEWS = TopicId("news", "sport")
GOAL = DataPayload(data={"title": "goal"})
KINDS = ["follow", "unfollow", "emit"]


async def follows(ctx, inbox):
    await ctx.follow(NEWS)


def emits(*given):
    """The agent that emits these, each a tuple of arguments."""

    async def story(ctx, inbox):
        for args in given:
            await ctx.emit(*args)

    return code(story)


def entries(run, kind="emit"):
    return list(JournalEntry.objects.filter(run=run, kind=kind).order_by("seq"))


# ---------------------------------------------------------------------------------------------------- following


def test_a_follow_is_of_the_agent_and_its_owner_and_tenant_not_of_a_run(ada):
    code(follows)
    drive(make_run(owner=ada, tenant="acme", metadata={"variables": {"likes": "tennis"}}))
    drive(make_run(owner=ada, tenant="acme"))
    follow = Follow.objects.get()
    assert (follow.agent, follow.topic, follow.owner, follow.tenant) == ("test/code", "news/sport", ada, "acme")
    assert (follow.session, follow.every_s) == (None, 0)
    assert follow.metadata == {"variables": {"likes": "tennis"}}, "what it was begun with"
    for whose in ({"owner": ada}, {}, {"tenant": "acme"}):
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


def test_following_anew_is_one_look_and_the_journal_row(monkeypatch):
    queries, seen = [], world.follows_known

    def counted(follow):
        queries.append(follow.topic)
        return seen(follow)

    code(follows)
    drive(make_run())
    row = Follow.objects.get()
    world.patch(monkeypatch, "follows_known", counted)
    world.patch(monkeypatch, "add_follow", None)  # nothing beside the journal is written
    run = drive(make_run(session=row.home))
    assert (run.status, queries) == (Status.COMPLETED, ["news/sport"])
    assert Follow.objects.get().id == row.id


def test_a_follow_that_is_deleted_meanwhile_is_there_again(monkeypatch):
    """Until the run's row is written to, anybody may still end the follow."""
    code(follows)
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


def test_a_loop_that_continues_as_new_follows_once_and_every_s_is_kept_until_another_is_given():
    given = [0, 60, 0, 30]

    async def story(ctx, inbox):
        left = 3 if ctx.state is None else ctx.state
        await ctx.follow(NEWS, every_s=given[3 - left])
        if left:
            await ctx.continue_as_new(left - 1)

    code(story)
    run, found = make_run(), []
    for _ in range(4):
        drive(run)
        found.append(Follow.objects.get().every_s)

    assert (run.status, run.generation, found) == (Status.COMPLETED, 3, [0, 60, 60, 30])


def test_unfollowing_ends_exactly_this_follow_and_drops_what_was_still_to_be_given(ada):
    async def story(ctx, inbox):
        await ctx.follow(NEWS, session=True)
        await ctx.follow("news/other")
        await ctx.follow(NEWS)
        await ctx.unfollow(NEWS)
        await ctx.unfollow("news/third", session=True)

    agent = code(story)
    kept, _ = ravi_django.follow(agent, NEWS, user=ada)
    dropped, _ = ravi_django.follow(agent, NEWS)
    publication = ravi_django.emit(NEWS, "goal")
    for one in (kept, dropped):
        FeedItem.objects.create(follow=one, publication=publication, due_at=publication.created_at)
    run = drive(make_run())

    assert run.status == Status.COMPLETED, run.error
    left = Follow.objects.order_by("id").values_list("topic", "owner", "session", "home")
    assert list(left) == [
        ("news/sport", ada.pk, None, None),
        ("news/sport", None, run.session_id, run.session_id),
        ("news/other", None, None, run.session_id),
    ]
    assert FeedItem.objects.get().follow == kept


BAD = {
    "topic": [
        lambda ctx: ctx.follow("a/b/c/d"),
        lambda ctx: ctx.follow("news/ü"),
        lambda ctx: ctx.follow(7),
        lambda ctx: ctx.unfollow("a//b"),
        lambda ctx: ctx.emit("/", "x"),
    ],
    "every_s": [lambda ctx: ctx.follow(NEWS, every_s=-1), lambda ctx: ctx.follow(NEWS, every_s=True)],
    "id": [lambda ctx, id=id: ctx.emit(NEWS, "x", id=id) for id in ("", "i" * 201, "a\0b")],
    "data": [lambda ctx: ctx.emit(NEWS, Message(target=NEWS, payload=ControlPayload(signal="abort")))],
}


def test_bad_input_names_the_parameter_and_writes_nothing(settings):
    async def story(ctx, inbox):
        for field, calls in BAD.items():
            for number, call in enumerate(calls):
                with case(field, number), refused(field):
                    await call(ctx)
        settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 100}
        with pytest.raises(PermanentError, match="101 bytes, the limit is 100"):
            await ctx.emit(NEWS, "x" * 99)
        return "refused"

    code(story)
    with CaptureQueriesContext(connection) as queries:
        run = drive(make_run())
    assert (run.status, run.output) == (Status.COMPLETED, "refused"), run.error
    assert not JournalEntry.objects.filter(kind__in=KINDS, error__isnull=True).exists()
    writes = ("ravi_follow", "ravi_publication")
    assert not [one for one in queries if any(name in one["sql"] for name in writes)], "nor is anything read"
    emits((NEWS, "x" * 98))
    assert drive(make_run()).status == Status.COMPLETED


# ---------------------------------------------------------------------------------------------------- publishing


def test_what_is_emitted_goes_to_those_who_follow_by_then(hinted, ada):
    agent = emits((NEWS, "goal"), ("news/nobody", "goal"))
    followers = [ravi_django.follow(agent, NEWS, tenant="acme", user=user)[0] for user in (None, ada)]
    ravi_django.follow(agent, NEWS)  # of another tenant
    run = drive(make_run(owner=ada, tenant="acme"))

    row, done = Publication.objects.order_by("id")
    assert (row.topic, row.tenant, row.owner, row.run_id) == ("news/sport", "acme", ada, run.id)
    assert (row.followers, row.last, row.upto, row.done_at) == (2, max(one.id for one in followers), None, None)
    assert (done.followers, done.last, done.done_at is not None) == (0, None, True), "nobody follows: done at once"
    assert hinted == [row.id]
    emitted = entries(run)[0]
    assert emitted.result == "goal"
    assert emitted.request == {"message": row.message_id, "publication": str(row.id), "followers": 2, "new": True}


GIVEN = [
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
]


def test_what_followers_are_given():
    emits(*((NEWS, given) for given, *_ in GIVEN))
    run = drive(make_run())
    assert run.status == Status.COMPLETED, run.error
    for row, (given, kind, inner) in zip(Publication.objects.order_by("id"), GIVEN, strict=True):
        message = Message.model_validate(row.body)
        assert message.payload.kind == kind, given
        assert (message.payload.message.text if kind == "chat" else message.payload.data) == inner
        assert (message.target, str(message.sender), message.reply_to) == (NEWS, "test/code", None)
        assert kind == "data" or message.payload.message.role == "user"


def test_a_message_to_a_topic_is_published_and_keeps_its_envelope(clock, ada):
    async def story(ctx, inbox):
        message = Message(target=NEWS, payload=GOAL, correlation_id="mine", metadata={"k": 1, "hops": 7})
        await ctx.send(NEWS, message)
        await ctx.send(NEWS, message)  # the same id: published once
        await ctx.emit("news/other", "plain")

    code(story)
    for run, _death in every_death(clock, lambda drive: drive(make_run())):
        assert run.status == Status.COMPLETED, run.error
        own, plain = (Publication.objects.get(topic=topic).body for topic in (str(NEWS), "news/other"))
        assert own["id"] == entries(run)[0].request["message"]
        assert (own["correlation_id"], own["metadata"].pop("publication") != "") == ("mine", True)
        assert (own["metadata"], own["sender"]) == ({"k": 1, "hops": 1}, "test/code")
        assert plain["correlation_id"] == str(run.session_id)
        assert plain["causation_id"] == InboxMessage.objects.get(run=run).message_id


def test_the_sites_code_submits_to_a_topic(ada):
    message = Message(target=NEWS, payload=GOAL, metadata={"k": 1, "hops": 7})
    first = ravi_django.submit(NEWS, message, user=ada, tenant="acme", idempotency_key="goal")
    again = ravi_django.submit(
        NEWS, message.model_copy(update={"id": "x"}), user=ada, tenant="acme", idempotency_key="goal"
    )
    assert (again.id, first.tenant, first.owner, first.body["id"]) == (first.id, "acme", ada, message.id)
    assert first.body["metadata"] == {"k": 1, "publication": str(first.id)}
    with refused("session"):
        ravi_django.submit(NEWS, message, session="x")


def test_a_bare_type_is_its_default_source_and_a_namespace_is_kept():
    async def story(ctx, inbox):
        await ctx.follow("news")
        await ctx.follow(TopicId("news", "sport", "uk"))
        for topic in (TopicId("news"), "news/sport", "uk/news/sport"):
            await ctx.emit(topic, 1)

    code(story)
    drive(make_run())

    found = dict(Publication.objects.values_list("topic", "followers"))
    assert found == {"news/default": 1, "news/sport": 0, "uk/news/sport": 1}
    assert Follow.objects.earliest("id").topic == "news/default"


# ---------------------------------------------------------------------------------------------------- replays


def test_a_takeover_does_each_once(clock, hinted):
    async def story(ctx, inbox):
        await ctx.follow("news/other", session=True)
        await ctx.follow(NEWS)
        await ctx.emit(NEWS, "goal", id="g1")
        await ctx.unfollow(NEWS)
        try:
            await ctx.emit(NEWS, "own goal", id="g1")
        except IdempotencyMismatchError as error:
            return str(error)

    code(story)
    for run, _death in every_death(clock, lambda drive: drive(make_run())):
        assert run.status == Status.COMPLETED, run.error
        assert "'g1' belongs to another message" in run.output
        assert list(Follow.objects.values_list("topic", flat=True)) == ["news/other"]
        assert Publication.objects.get().followers == 1
        assert set(hinted) <= {Publication.objects.get().id}
        kinds = JournalEntry.objects.filter(run=run, kind__in=KINDS, error__isnull=True).order_by("seq")
        assert list(kinds.values_list("kind", flat=True)) == ["follow", "follow", "emit", "unfollow"]
        hinted.clear()


def test_an_agent_that_notes_on_itself_that_it_follows_is_not_blocked(clock):
    async def story(ctx, inbox):
        if not noted:
            await ctx.follow(NEWS, every_s=30)
            noted.append(True)
        await ctx.follow(NEWS, every_s=60)
        await ctx.unfollow(NEWS)
        await ctx.follow(NEWS, every_s=30)

    code(story)
    noted = []
    for run, _death in every_death(clock, lambda drive: drive(make_run())):
        assert (run.status, Follow.objects.get().every_s) == (Status.COMPLETED, 30), run.error
        noted.clear()


@pytest.mark.parametrize("what", KINDS)
def test_a_zombie_follows_and_publishes_nothing(what):
    acts = {
        "follow": lambda ctx: ctx.follow(NEWS),
        "emit": lambda ctx: ctx.emit(NEWS, "goal"),
        "unfollow": lambda ctx: ctx.unfollow("news/kept"),
    }
    agent = code(lambda ctx, inbox: acts[what](ctx))
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
    assert not JournalEntry.objects.filter(kind__in=KINDS).exists()


def test_a_fork_publishes_anew_what_is_not_of_the_shared_past_and_default_ids_are_of_place_and_generation():
    async def story(ctx, inbox):
        await ctx.emit(NEWS, "past")
        await ctx.emit(NEWS, "future")
        await ctx.emit(NEWS, "own", id="mine")
        if inbox[0].payload.message.text == "again":
            await ctx.continue_as_new()

    code(story)
    run = drive(make_run())
    drive(world.fork(run.id, entries(run)[0].seq))

    bodies = Publication.objects.values_list("body", flat=True)
    said = [body["payload"]["message"]["content"][0]["text"] for body in bodies]
    assert sorted(said) == ["future", "future", "own", "own", "past"]
    assert Publication.objects.values("scope").distinct().count() == 5
    Publication.objects.all().delete()
    run = make_run(text="again")
    for _ in range(2):
        drive(run)
    assert Publication.objects.values("message_id").distinct().count() == 5, "two by default in each, and its own"


def test_a_row_of_before_publications_is_recalled(clock):
    emits(("t", {"old": 1}), (NEWS, "new"))
    run = drive(make_run(), dies=1, written=True)
    JournalEntry.objects.filter(kind="emit").update(request=None)
    Publication.objects.all().delete()
    run = take_over(clock, run)
    assert (run.status, run.error) == (Status.COMPLETED, None)
    assert Publication.objects.get().topic == "news/sport"


# ---------------------------------------------------------------------------------------------------- permissions


@pytest.fixture
def policy(monkeypatch):
    """The site's; refuses to follow while it is `refusing`."""

    class Policy(access.AccessPolicy):
        def __init__(self):
            self.refusing, self.asked = False, []

        def may_follow(self, user, agent, topic):
            self.asked.append((user, str(agent)))
            return not self.refusing

    made = Policy()
    monkeypatch.setattr(access, "policy", lambda: made)
    return made


def test_a_replay_repeats_a_refusal_whatever_the_policy_says_by_then(clock, policy, ada):
    async def story(ctx, inbox):
        try:
            await ctx.follow(NEWS)
        except ForbiddenError as error:
            policy.refusing = False
            await ctx.unfollow(NEWS)
            return str(error)

    def told(drive):
        policy.refusing = True
        return drive(make_run(owner=type(ada).objects.get()))

    code(story)
    for run, death in every_death(clock, told):
        assert run.status == Status.COMPLETED, run.error
        assert run.output == "test/code may not follow news/sport for user 'ada'" or death.lost("follow")
        assert not Publication.objects.exists()


def test_a_run_whose_owner_is_deleted_is_not_the_systems_and_the_policy_is_asked_once(ada, policy):
    async def story(ctx, inbox):
        await ctx.follow(NEWS)
        await ctx.follow("news/other")
        await ctx.emit(NEWS, "x")
        if inbox[0].payload.message.text == "deleted":
            await ctx.recorder.database.call(type(ada).objects.filter(pk=ada.pk).delete)
            for refused in (ctx.follow("news/late"), ctx.emit("news/late", "x")):
                with pytest.raises(ForbiddenError, match="is no more"):
                    await refused

    agent = code(story)
    drive(make_run(owner=ada))
    drive(make_run())
    assert policy.asked == [(ada, str(agent.id))] * 2, "about the run's owner"
    run = drive(make_run(owner=ada, text="deleted"))

    assert run.status == Status.COMPLETED, run.error
    assert not Follow.objects.filter(topic="news/late").exists()
    assert not Publication.objects.filter(topic="news/late").exists()
