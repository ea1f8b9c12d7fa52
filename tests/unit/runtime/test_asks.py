"""Runs among themselves: children, questions with one outcome each, messages."""

import asyncio

import pytest
from django.db import transaction

from ravi_django import register, signal
from ravi_django.kernel import (
    AgentId,
    AgentNotFoundError,
    CancellationError,
    ChatMessage,
    ChatPayload,
    ControlPayload,
    Message,
    RunHandle,
    SpawnDeniedError,
)
from ravi_django.models import TERMINAL, Ask, InboxMessage, Run, Session, Status, uuid7
from ravi_django.testing import journal_of, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, auntil, code, drive, every_death, idle, in_background, leased, make_run, until
from tests.support.trees import spawn
from tests.support.world import Entry, cancel

pytestmark = pytest.mark.django_db(transaction=True)

CHILD = AgentId("test", "child")


def child(function):
    """Register a function as the agent `test/child`."""
    agent = CodeAgent(function, key="child")
    register(agent)
    return agent


def text_of(message):
    return message.payload.message.text


async def shout(ctx, inbox):
    for message in inbox:
        await ctx.reply(message, text_of(message).upper())


async def stay(ctx, inbox):
    return await ctx.sleep_until_signal("go")


def said(text):
    return Message(target=CHILD, payload=ChatPayload(message=ChatMessage.of("user", text)))


def the_child(run):
    return Run.objects.get(parent_id=run.id)


def test_the_messages_of_a_tree_name_its_conversation_and_the_message_that_led_to_them():
    seen = {}

    def link(key, act=None):
        async def story(ctx, inbox):
            for message in inbox:
                seen[key, message.text] = (message.correlation_id, message.causation_id, message.id, ctx.session_id)
                if act is not None:
                    await act(ctx)
                await ctx.reply(message, "done")

        register(CodeAgent(story, key=key))

    async def passes_on(ctx):
        await ctx.ask("test/third", "go")
        await ctx.send("test/sent", "go")
        own = Message(target=CHILD, payload=said("own").payload, correlation_id="mine", causation_id="c")
        await ctx.ask("test/third", own)

    link("third")
    link("sent", lambda ctx: ctx.ask("test/third", "sent on"))
    link("second", passes_on)

    async def root(ctx, inbox):
        await ctx.ask("test/second", "go")

    code(root)
    run = drive(make_run())
    idle(run)

    first, *_ = InboxMessage.objects.filter(run=run)
    conversation = str(run.session_id)
    of_second, of_sent = seen["second", "go"], seen["sent", "go"]
    assert of_second[:2] == (conversation, first.message_id)
    assert seen["third", "go"][:2] == of_sent[:2] == (conversation, of_second[2])
    assert seen["third", "own"][:2] == ("mine", "c")
    assert seen["third", "sent on"][:2] == (of_sent[3], of_sent[2]) == (of_second[3], of_sent[2])


def outcome(answer):
    return {"kind": answer.kind, "result": answer.result}


def asking(message="hello", *, timeout=None):
    async def story(ctx, inbox):
        return outcome(await ctx.ask(CHILD, message, timeout=timeout))

    return story


@pytest.mark.sqlite
def test_an_ask_gives_the_childs_reply_or_its_output():
    async def end(ctx, inbox):
        return "the output"

    child(shout)
    code(asking())
    run = idle(make_run())
    assert (run.status, run.output) == (Status.COMPLETED, '{"kind":"replied","result":"HELLO"}')
    found = the_child(run)
    assert (found.status, found.depth, found.root_id) == (Status.COMPLETED, 1, run.id)
    assert found.session.parent_session_id == run.session_id
    assert found.session_id != run.session_id
    for one in (run, found):
        assert [entry.seq for entry in journal_of(one)] == list(range(1, len(journal_of(one)) + 1))
    child(end)
    assert idle(make_run()).output == '{"kind":"replied","result":"the output"}'


@pytest.mark.sqlite
def test_spawn_then_ask_with_the_same_message_delivers_it_once():
    seen = []

    async def answer(ctx, inbox):
        seen.append([text_of(message) for message in inbox])
        await ctx.sleep_until_signal("go")
        await ctx.reply(inbox[0], "done")

    async def story(ctx, inbox):
        boot = said("work")  # made anew by each replay, under another id
        handle = await ctx.spawn(CHILD, boot)
        return outcome(await ctx.ask(handle, boot))

    child(answer)
    code(story)
    run = drive(make_run())
    run_until_idle()
    signal(the_child(run).id, "go")
    idle(run)
    assert run.output == '{"kind":"replied","result":"done"}'
    assert InboxMessage.objects.filter(run=the_child(run)).count() == 1
    assert {tuple(batch) for batch in seen} == {("work",)}


def test_a_failed_target_is_told_from_a_cancelled_one():
    async def fail(ctx, inbox):
        raise ValueError("no idea")

    child(fail)
    code(asking())
    failed = idle(make_run())
    child(stay)
    cancelled = idle(make_run())
    cancel(the_child(cancelled).id, "not needed")
    assert '"kind":"target_failed"' in failed.output and "no idea" in failed.output
    assert '"kind":"target_cancelled"' in idle(cancelled).output


def test_an_ask_that_times_out_leaves_the_target_and_a_late_reply_is_a_message(clock):
    async def late(ctx, inbox):
        await ctx.sleep_until_signal("go")
        await ctx.reply(inbox[0], {"too": "late"})

    async def story(ctx, inbox):
        if inbox[0].sender == CHILD:
            return f"late: {inbox[0].payload.data}"
        answer = await ctx.ask(CHILD, "hello", timeout=60)
        await ctx.sleep_until_signal("on")
        return answer.kind

    child(late)
    code(story)
    run = drive(make_run())
    run_until_idle()
    clock.advance(61)
    run = drive(run)
    assert (run.status, run.waiting_on[0]["name"]) == (Status.SUSPENDED, "on")
    assert the_child(run).status == Status.SUSPENDED
    signal(the_child(run).id, "go")
    run_until_idle()
    signal(run.id, "on")
    idle(run)
    assert (run.status, run.output) == (Status.COMPLETED, "late: {'too': 'late'}")
    assert Ask.objects.get().outcome == "timed_out"


def test_two_questions_to_one_run_are_told_apart_by_their_messages():
    async def answer(ctx, inbox):
        for place in (1, 0):
            await ctx.reply(inbox[place], f"re: {text_of(inbox[place])}")

    async def story(ctx, inbox):
        handle = await ctx.spawn(CHILD)
        answers = await asyncio.gather(ctx.ask(handle, "one"), ctx.ask(handle, "two"))
        return [answer.result for answer in answers]

    child(answer)
    code(story)
    run = drive(make_run())
    assert the_child(run).inbox.count() == 2
    assert idle(run).output == '["re: one","re: two"]'


def test_join_waits_for_the_end_and_is_over_at_once_behind_it():
    async def story(ctx, inbox):
        handles = [await ctx.spawn(CHILD, text) for text in ("a", "b")]
        ends = await asyncio.gather(*(ctx.join(handle) for handle in handles))
        again = await ctx.join(handles[0])
        return [end.result for end in ends] + [again.kind, again.result]

    child(shout)
    code(story)
    assert idle(make_run()).output == '["A","B","replied","A"]'


def test_an_ask_that_would_close_a_cycle_fails_at_once():
    async def ask_back(ctx, inbox):
        answer = await ctx.ask(RunHandle(inbox[0].reply_to, AgentId("test", "code")), "and you?")
        await ctx.reply(inbox[0], outcome(answer))

    child(ask_back)
    code(asking())
    run = idle(make_run())
    assert run.status == Status.COMPLETED
    assert '"kind":"target_failed"' in run.output
    assert "Cycle" in run.output


def test_a_cancelled_run_takes_its_children_with_it():
    async def nested(ctx, inbox):
        await ctx.ask(AgentId("test", "leaf"), "down")

    child(nested)
    register(CodeAgent(stay, key="leaf"))
    code(asking())
    run = make_run()
    run_until_idle()
    assert Run.objects.filter(status=Status.SUSPENDED).count() == 3
    cancel(run.id, "enough")
    assert Run.objects.filter(status=Status.CANCELLED).count() == 3


def test_a_run_that_is_to_be_cancelled_spawns_no_child():
    lease = world.claim(make_run().id, "w")
    world.request_cancel(lease.run_id, "stop")
    with pytest.raises(CancellationError):
        spawn(lease)
    assert not Run.objects.filter(parent_id=lease.run_id).exists()
    assert not journal_of(lease.run_id)


def test_a_tree_has_no_more_live_runs_than_allowed_and_the_refusal_is_replayed(settings, clock, step):
    settings.RAVI = {**settings.RAVI, "MAX_TREE": 3}

    async def story(ctx, inbox):
        made = []
        for _ in range(4):
            try:
                await ctx.spawn(CHILD, "x")
                made.append("spawned")
            except SpawnDeniedError:
                made.append("denied")
        await ctx.sleep_until_signal("go")
        return made

    child(stay)
    code(story)
    run = drive(make_run())
    assert Run.objects.filter(parent_id=run.id).count() == 2
    settings.RAVI = {**settings.RAVI, "MAX_TREE": 50}
    signal(run.id, "go")
    run = drive(run)
    assert run.output == '["spawned","spawned","denied","denied"]'


def test_a_message_to_an_address_goes_to_its_active_run_in_the_session_or_a_new_one():
    async def story(ctx, inbox):
        await ctx.send(CHILD, "hello")
        await ctx.sleep_until_signal("go")
        await ctx.send(CHILD, "again")

    child(stay)
    code(story)
    run = drive(make_run())
    other = Run.objects.get(agent=str(CHILD))
    assert (other.parent_id, other.session_id, other.inbox.count()) == (None, run.session_id, 1)
    run_until_idle()
    signal(run.id, "go")
    drive(run)
    assert Run.objects.filter(agent=str(CHILD)).count() == 1
    assert other.inbox.count() == 2


@pytest.mark.parametrize(("word", "status"), [("abort", Status.CANCELLED), ("go", Status.COMPLETED)])
def test_an_ancestors_control_message_acts_on_the_run(word, status):
    async def story(ctx, inbox):
        handle = await ctx.spawn(CHILD, "x")
        await ctx.sleep_until_signal("now")
        await ctx.send(handle, Message(target=CHILD, payload=ControlPayload(signal=word, data={"a": 1})))
        return outcome(await ctx.join(handle))

    child(stay)
    code(story)
    run = make_run()
    run_until_idle()
    signal(run.id, "now")
    run_until_idle()
    assert the_child(run).status == status


def test_a_message_to_an_address_goes_past_a_run_that_was_just_handed_over(monkeypatch):
    """Found as the one's, it is the other's by the time it is locked."""
    session = world.create_session(Session(agent="test/front"))
    front = make_run("test/front", session=session)
    sender = leased(make_run(session=session))
    lock = world.asking_lock

    def handing_over(run_ids):
        Run.objects.filter(id=front.id).update(agent="test/back")
        lock(run_ids)

    world.patch(monkeypatch, "asking_lock", handing_over)
    made = Run(id=uuid7(), agent="test/front", session_id=session.id)
    entry = Entry("msg.sent", "1", "test/front", request={})
    world.deliver_to_agent(sender, [entry], run=made, message=said("for the front").model_dump(mode="json"))
    assert entry.result == {"run": str(made.id), "delivered": True}
    assert [InboxMessage.objects.filter(run=run).count() for run in (front, made)] == [1, 1]


def test_a_run_for_a_message_whose_commit_was_lost_is_ready_when_its_session_is_free_by_then():
    session = world.create_session(Session(agent="test/front"))
    sender, before = leased(make_run(session=session)), make_run("test/front", session=session, status=Status.QUEUED)
    write = {"run": Run(id=uuid7(), agent="test/front", session_id=session.id), "message": said("hi").model_dump()}
    with transaction.atomic():
        world.deliver_to_agent(sender, [Entry("msg.sent", "1", "test/front", request={})], **write)
        transaction.set_rollback(True)
    Run.objects.filter(id=before.id).update(status=Status.CANCELLED)

    world.deliver_to_agent(sender, [Entry("msg.sent", "1", "test/front", request={})], **write)
    assert Run.objects.get(id=write["run"].id).status == Status.PENDING


def test_nobody_but_an_ancestor_may_send_a_control_message_and_nobody_any_to_a_run_of_somebody_else(django_user_model):
    sent = []

    async def story(ctx, inbox):
        await ctx.send(RunHandle(str(other.id), CHILD), sent[-1])

    code(story)
    other = make_run("test/other")
    sent.append(Message(target=CHILD, payload=ControlPayload(signal="abort")))
    run = drive(make_run())
    assert (run.status, run.error["type"]) == (Status.FAILED, "PermanentError")
    other.refresh_from_db()
    assert other.status == Status.PENDING
    owner = django_user_model.objects.create_user("ann")
    other = make_run("test/other", session=world.create_session(Session(owner=owner)), owner=owner)
    sent.append("hi")
    run = drive(make_run())
    assert (run.status, run.error["type"]) == (Status.FAILED, "NotFoundError")
    assert other.inbox.count() == 1


def test_the_first_reply_stays_the_outcome():
    async def answer(ctx, inbox):
        await ctx.reply(inbox[0], "the reply")
        await ctx.reply(inbox[0], "another")
        await ctx.reply(inbox[0].model_copy(update={"id": "another"}), "the last word")

    child(answer)
    code(asking())
    run = drive(make_run())
    found = drive(the_child(run))
    run = drive(run)
    assert (found.output, run.output) == ("the last word", '{"kind":"replied","result":"the reply"}')


def test_a_reply_that_came_before_the_timeout_was_recorded_counts(clock):
    child(stay)
    code(asking(timeout=60))
    run = drive(make_run())
    world.touch([run.id])
    lease = leased(run)
    Ask.objects.update(outcome="replied", result="just in time")
    clock.advance(61)
    with pytest.raises(world.NotExpired) as found:
        world.time_out_ask(lease, [Entry("ask", "x", "test/child")], ask_id=Ask.objects.get().id)
    assert found.value.until is None
    assert Ask.objects.get().outcome == "replied"


# ------------------------------------------------------------------------------------------------- asks of one turn


@pytest.fixture
def written(monkeypatch):
    """How many children each transaction has written, or tried to."""
    counts = []
    spawn = world.spawn

    def counting(lease, entries, turns=(), *, spawning):
        counts.append(len(spawning))
        return spawn(lease, entries, turns, spawning=spawning)

    world.patch(monkeypatch, "spawn", counting)
    return counts


def open_children(run_id):
    return Run.objects.filter(parent_id=run_id).exclude(status__in=TERMINAL)


def asking_each(*names):
    """Ask one child, so that the stream has begun, and then one for each of the names, all at once. The first one has
    ended by then: it replies before, and takes part of the room until its end."""

    async def one(ctx, name):
        try:
            return (await ctx.ask(CHILD, name)).result
        except (SpawnDeniedError, AgentNotFoundError) as error:
            return type(error).__name__

    async def story(ctx, inbox):
        await one(ctx, "first")
        await asyncio.to_thread(in_background(until, lambda: not open_children(ctx.run_id)).result, BOUND_S)
        return await asyncio.gather(*(one(ctx, name) for name in names))

    return code(story)


def test_the_asks_of_one_turn_are_one_transaction(written):
    child(shout)
    asking_each("a", "b", "c")
    run = idle(make_run())

    assert written == [1, 3]
    assert run.output == '["A","B","C"]'
    pairs = [row.kind for row in journal_of(run.id) if row.kind == "child.spawned" or row.phase == "started"]
    assert pairs == ["child.spawned", "ask"] * 4
    children = Run.objects.filter(parent_id=run.id)
    assert {ask.target_id for ask in Ask.objects.filter(asker_id=run.id)} == {one.id for one in children}
    assert InboxMessage.objects.filter(run__in=children).count() == 4


def test_no_death_among_asks_of_one_turn_loses_or_doubles_a_child(clock):
    def one(drive):
        child(shout)
        asking_each("a", "b", "c")
        return drive(make_run())

    for run, death in every_death(clock, one):
        idle(run)
        assert run.output == '["A","B","C"]', death
        assert Run.objects.filter(parent_id=run.id).count() == 4


def test_of_asks_that_do_not_all_have_room_each_decides_alone(settings, written):
    settings.RAVI = {**settings.RAVI, "MAX_TREE": 3}

    async def shout_late(ctx, inbox):
        await auntil(lambda: len(written) in (1, 5))  # none ends and leaves room before the last has asked for it
        await shout(ctx, inbox)

    child(shout_late)
    asking_each("a", "b", "c")
    run = idle(make_run())

    assert written == [1, 3, 1, 1, 1]
    assert run.output == '["A","B","SpawnDeniedError"]'


def test_children_that_are_written_together_do_not_pass_the_runs_of_another_owner(clock):
    child(shout)
    asking_each(*"abcd")
    run = idle(make_run())

    at = list(Run.objects.filter(parent_id=run.id).order_by("id").values_list("claim_at", flat=True))[1:]
    assert [(later - at[0]).total_seconds() for later in at] == [0, 10, 20, 30]
