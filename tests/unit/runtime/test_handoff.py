"""A run that goes on as another agent: who asked is answered once, whatever dies in between."""

import asyncio

import pytest

from ravi_django import register, signal, tool
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, Message, RunContext, RunHandle
from ravi_django.models import Ask, InboxMessage, Run, Status
from ravi_django.testing import journal_of, run_until_idle
from tests.support import world
from tests.support.cases import refused
from tests.support.runs import CodeAgent, asked, code, drive, every_death, idle, make_run, take_over
from tests.support.world import cancel, unregister

pytestmark = pytest.mark.django_db(transaction=True)

B = AgentId("test", "b")


def agent(key, function, *, tools=()):
    """Register a function as the agent `test/<key>`."""
    made = CodeAgent(function, key=key, tools=tools)
    register(made)
    return made


def text_of(message):
    return message.payload.message.text


def texts(inbox):
    return [text_of(message) for message in inbox]


def handing_over(target=B, task=None):
    async def story(ctx, inbox):
        await ctx.handoff(target, task, answers=inbox[0])
        raise AssertionError("a handoff does not return")

    return story


async def shout(ctx, inbox):
    for message in inbox:
        await ctx.reply(message, text_of(message).upper())


def kinds(run, kind):
    return [row for row in journal_of(run) if row.kind == kind]


def test_the_other_agent_goes_on_as_the_same_run_and_ends_it_once():
    agent("b", shout)
    code(handing_over(task="go on"))
    run = idle(make_run())
    assert (run.status, run.output, run.agent) == (Status.COMPLETED, "GO ON", "test/b")
    assert (run.generation, run.session.agent, Run.objects.count()) == (1, "test/b", 1)
    (row,) = kinds(run, "run.handoff")
    assert row.result == {"from": "test/code", "to": "test/b", "generation": 1}
    assert len(kinds(run, "run.completed")) == 1
    rows = journal_of(run)
    assert [one.seq for one in rows] == list(range(1, len(rows) + 1))


def test_the_other_is_given_the_message_itself_or_the_task_under_the_callers_address():
    seen = []

    async def answer(ctx, inbox):
        seen.extend(inbox)

    agent("b", answer)
    payload = ChatPayload(message=ChatMessage.of("user", "special"))
    task = Message(target=AgentId("test", "nobody"), payload=payload, metadata={"mine": 1})
    firsts = []
    for given in (None, task):
        code(handing_over(task=given))
        run = make_run(text="the question")
        firsts.append(InboxMessage.objects.get(run=run).message_id)
        run_until_idle()
    itself, other = seen
    assert (itself.id, text_of(itself), itself.target) == (firsts[0], "the question", B)
    assert (itself.sender, itself.reply_to) == (None, None)
    assert (text_of(other), other.target) == ("special", B)
    assert other.metadata == {"mine": 1, "handed_over": "task"}
    assert (other.id, other.causation_id) == (task.id, firsts[1])


def asking(target="a", message="hello"):
    async def story(ctx, inbox):
        answer = await ctx.ask(AgentId("test", target), message)
        return f"{answer.kind}: {answer.result}"

    return story


def test_a_whole_row_of_agents_answers_the_one_who_asked_first():
    agent("a", handing_over(AgentId("test", "b"), "for b"))
    agent("b", handing_over(AgentId("test", "c"), "for c"))
    agent("c", handing_over(AgentId("test", "d")))
    agent("d", shout)
    code(asking())
    run = idle(make_run())
    assert run.output == "replied: FOR C"
    child = Run.objects.get(parent=run)
    assert (child.agent, child.generation) == ("test/d", 3)
    moves = [(row.result["from"], row.result["to"]) for row in kinds(child, "run.handoff")]
    assert moves == [("test/a", "test/b"), ("test/b", "test/c"), ("test/c", "test/d")]
    assert Ask.objects.get().outcome == "replied"


def test_what_the_inbox_has_behind_the_message_goes_along_in_order(clock):
    seen = []

    async def first(ctx, inbox):
        await ctx.sleep_until_signal("go")
        await ctx.reply(inbox[0], "one is mine")
        await ctx.handoff(B, "take two")

    async def answer(ctx, inbox):
        seen.append(texts(inbox))

    async def story(ctx, inbox):
        handle = await ctx.spawn(AgentId("test", "a"))
        for text in ("one", "two", "three"):
            await ctx.send(handle, text)
        await ctx.sleep_until_signal("more")
        await ctx.send(handle, "four")
        await ctx.sleep_until_signal("never")

    agent("a", first)
    agent("b", answer)
    code(story)
    run = drive(make_run())
    child = drive(Run.objects.get(parent=run))
    signal(run.id, "more")
    drive(run)
    signal(child.id, "go")
    run_until_idle()
    assert seen == [["take two", "three", "four"]]


def test_children_of_who_hands_over_are_cancelled_and_their_words_reach_nobody():
    seen = []

    async def stay(ctx, inbox):
        await ctx.sleep_until_signal("never")

    async def hand(ctx, inbox):
        handle = await ctx.spawn(AgentId("test", "child"), "work")
        asked = asyncio.create_task(ctx.ask(handle, "and this"))
        await ctx.sleep_until_signal("go")
        asked.cancel()
        await ctx.handoff(B)

    async def answer(ctx, inbox):
        seen.append(texts(inbox))
        return "done"

    agent("child", stay)
    agent("b", answer)
    code(hand)
    run = drive(make_run())
    run_until_idle()
    child = Run.objects.get(parent=run)
    assert child.status == Status.SUSPENDED
    signal(run.id, "go")
    idle(run)
    child.refresh_from_db()
    assert (run.status, run.output) == (Status.COMPLETED, "done")
    assert (child.status, child.cancel_reason) == (Status.CANCELLED, f"run {run.id} was handed over to test/b")
    assert seen == [["hi"]]
    assert Ask.objects.get().outcome == "target_cancelled"


def test_an_answer_that_the_first_had_asked_for_is_no_message_to_the_other():
    seen = []

    async def answer(ctx, inbox):
        if texts(inbox) == ["hi"]:
            await ctx.sleep_until_signal("asked")
            return
        await ctx.sleep_until_signal("go")
        await ctx.reply(inbox[0], "too late")

    async def first(ctx, inbox):
        asked = asyncio.create_task(ctx.ask(RunHandle(str(friend.id), AgentId("test", "friend")), "well?"))
        await ctx.sleep_until_signal("go")
        asked.cancel()
        await ctx.handoff(B)

    async def other(ctx, inbox):
        seen.append(texts(inbox))
        await ctx.sleep_until_signal("end")

    agent("friend", answer)
    agent("b", other)
    code(first)
    friend = drive(make_run("test/friend"))  # no child of it
    run = drive(make_run())
    signal(friend.id, "asked")
    drive(friend)
    signal(run.id, "go")
    run = drive(drive(run))
    assert (run.agent, run.status) == ("test/b", Status.SUSPENDED)
    signal(friend.id, "go")
    friend = drive(friend)
    assert len(kinds(friend, "ask.replied")) == 1
    signal(run.id, "end")
    idle(run)
    assert run.status == Status.COMPLETED
    assert all(batch == ["hi"] for batch in seen)
    assert InboxMessage.objects.filter(run=run).count() == 2  # as submitted, and as handed over


def test_an_effect_that_may_have_happened_is_decided_before_it_is_forgotten(clock):
    sent = []

    @tool(risk="high", effect="at_most_once")
    async def send(to: str) -> str:
        sent.append(to)
        await asyncio.Event().wait()

    async def first(ctx, inbox):
        task = asyncio.create_task(ctx.tool("send", to="ACME"))
        while not sent:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await ctx.handoff(B, "go on")

    agent("b", shout)
    code(first, tools=[send])
    run = drive(make_run())
    assert run.agent == "test/code"
    request = asked(run)
    clock.advance(200)
    world.human_resolve(request.id, "happened", result="sent")
    idle(run)
    assert (run.status, run.output, sent) == (Status.COMPLETED, "GO ON", ["ACME"])


def test_a_worker_that_dies_on_either_side_neither_loses_nor_doubles_it(clock, step, ran):
    async def first(ctx, inbox):
        await ctx.tool("step", name="a1")
        await ctx.tool("step", name="a2")
        await ctx.handoff(B, "go on", answers=inbox[0])

    async def answer(ctx, inbox):
        await ctx.tool("step", name="b1")
        await ctx.tool("step", name="b2")
        await ctx.reply(inbox[0], text_of(inbox[0]))

    agent("a", first, tools=[step])
    agent("b", answer, tools=[step])
    code(asking())

    def story(drive_and_die):
        ran.clear()
        child = drive_and_die(Run.objects.get(parent=drive(make_run())))
        if child.status == Status.PENDING:
            drive_and_die(child)
        run_until_idle()
        return child

    for child, death in every_death(clock, story):
        assert child.parent.output == "replied: go on"
        assert len(kinds(child, "run.handoff")) == len(kinds(child, "ask.replied")) == 1
        assert [row.request["arguments"]["name"] for row in kinds(child, "tool.call")] == ["a1", "a2", "b1", "b2"]
        assert len(ran) == 4 + death.lost("tool.call")


def test_code_that_hands_over_before_what_it_did_then_is_blocked(clock, step, monkeypatch):
    world.patch(monkeypatch, "STALL_S", 0.2)

    async def first(ctx, inbox):
        await ctx.tool("step", name="a1")
        await ctx.sleep_until_signal("go")

    async def changed(ctx, inbox):
        with ctx.scope("elsewhere"):
            await ctx.handoff(B)

    agent("b", shout)
    code(first, tools=[step])
    run = drive(make_run())
    signal(run.id, "go")
    code(changed, tools=[step])
    run = drive(run)
    assert (run.status, run.error["type"], run.agent) == (Status.BLOCKED, "DeterminismError", "test/code")


def refused_to(target):
    async def story(ctx, inbox):
        try:
            await ctx.handoff(target)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return story


def test_a_target_that_nobody_knows_is_refused_and_every_replay_says_so(clock):
    code(refused_to("test/nobody"))
    run = make_run()
    drive(run, dies="end")
    agent("nobody", shout)  # by now
    run = take_over(clock, run)
    assert run.output.startswith("AgentNotFoundError: no agent is registered as 'test/nobody'")
    assert (run.agent, run.generation) == ("test/code", 0)
    assert kinds(run, "run.handoff")[0].error["type"] == "AgentNotFoundError"


def test_a_circle_ends_with_a_clear_error(settings):
    settings.RAVI = {**settings.RAVI, "MAX_DEPTH": 3}
    agent("b", refused_to("test/code"))
    code(refused_to(B))
    run = idle(make_run())
    assert run.output.endswith("Error: the run was handed over 3 times already, the limit is 3; answer it")
    assert (run.agent, run.generation) == ("test/b", 3)


def test_handing_over_to_oneself_is_a_new_beginning():
    async def again(ctx, inbox):
        if text_of(inbox[0]) == "hi":
            await ctx.handoff(ctx.agent_id, "again")
        return text_of(inbox[0])

    code(again)
    run = idle(make_run())
    assert (run.output, run.generation) == ("again", 1)


def test_a_tool_cannot_hand_over_by_itself():
    @tool
    async def leave(ctx: RunContext) -> str:
        await ctx.handoff(B)
        return "not reached"

    async def story(ctx, inbox):
        return (await ctx.tool("leave")).text

    agent("b", shout)
    code(story, tools=[leave])
    run = idle(make_run())
    assert ("FinishAgentResult" in run.output, run.agent) == (True, "test/code")


def test_what_is_no_task_or_no_message_of_the_inbox_is_named():
    stranger = Message(target=B, payload=ChatPayload(message=ChatMessage.of("user", "x")))

    async def story(ctx, inbox):
        for task, answers, field in (("", None, "task"), (3, None, "task"), (None, stranger, "answers")):
            with refused(field):
                await ctx.handoff(B, task, answers=answers)

    agent("b", shout)
    code(story)
    run = idle(make_run())
    assert (run.status, run.error) == (Status.COMPLETED, None)


def test_a_worker_without_the_others_code_leaves_it_alone():
    found = agent("b", shout)
    code(handing_over(task="later"))
    run = drive(make_run())
    unregister("test/b")
    idle(run)
    assert (run.status, run.agent) == (Status.PENDING, "test/b")
    assert world.claim(run.id, "w", ["test/code"]) is None
    register(found)
    idle(run)
    assert run.output == "LATER"


def test_a_cancel_right_at_it_ends_the_run_once(monkeypatch):
    ran_on = []

    async def answer(ctx, inbox):
        ran_on.append(1)

    before = world.hand_over

    def cancelled_meanwhile(lease, *args, **kwargs):
        cancel(lease.run_id, "enough")
        return before(lease, *args, **kwargs)

    world.patch(monkeypatch, "hand_over", cancelled_meanwhile)
    agent("b", answer)
    code(handing_over())
    run = idle(make_run())
    assert (run.status, run.error["message"], run.agent) == (Status.CANCELLED, "enough", "test/b")
    assert ran_on == []
    assert len(kinds(run, "run.cancelled")) == 1
