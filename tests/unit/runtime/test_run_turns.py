"""Every turn of a run reaches the history once, whoever in the run writes it."""

import pytest

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import ChatMessage, Message, RunContext, ToolUseBlock
from ravi_django.models import InboxMessage, JournalEntry, Turn
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.runs import drive, every_death, in_background, leased, make_run, message
from tests.support.world import Entry, fork

pytestmark = pytest.mark.django_db(transaction=True)


def react(model, **options):
    return ReActAgent("turns", model=model, context=ContextConfig(DjangoHistoryProvider()), **options)


def turns_of(run):
    rows = Turn.objects.filter(session_id=run.session_id).order_by("position")
    return [f"{row.role}: {_words(row.blocks)}" for row in rows]


def _words(content):
    return " ".join(block.get("text") or block["type"] for block in content)


def deliver(run):
    """Another run sends a message; once."""
    if InboxMessage.objects.filter(run=run).count() == 1:
        sender = leased(make_run())
        body = message("second", "react/turns")
        world.asking_deliver(sender, [Entry("msg.sent", "1", run.agent)], target_id=run.id, message=body)


def test_a_message_that_comes_meanwhile_and_its_answer_are_kept(clock):
    """The code is called once more for it, in the same run."""

    def story(drive):
        def answer(messages, options):
            if messages[-1].text == "second":
                assert [message.text for message in messages] == ["hi", "first answer", "second"]
                return "second answer"
            in_background(deliver, run).result()
            return "first answer"

        register(react(ScriptedModel([answer])))
        run = make_run("react/turns")
        drive(run)
        while run.status == "pending":
            run = drive(run)
        return run

    for run, _ in every_death(clock, story):
        assert run.output == "second answer"
        assert turns_of(run) == ["user: hi", "assistant: first answer", "user: second", "assistant: second answer"]


def test_what_a_tool_or_an_agent_of_ones_own_appends_takes_no_turns_place(clock):
    history = DjangoHistoryProvider()

    class Greeter(ReActAgent):
        async def run(self, ctx: RunContext, inbox: list[Message]) -> str | None:
            await history.append(self.id, ctx.session_id, ChatMessage.of("assistant", "welcome"), run_id=ctx.run_id)
            return await super().run(ctx, inbox)

    @tool
    async def note(ctx: RunContext) -> str:
        """Note."""
        await history.append(ctx.agent_id, ctx.session_id, ChatMessage.of("assistant", "noted"), run_id=ctx.run_id)
        return "ok"

    def story(drive):
        call = ToolUseBlock(tool_name="note", arguments={}, call_id="c1")
        model = ScriptedModel([call, "fine"])
        register(Greeter("turns", model=model, tools=[note], context=ContextConfig(history)))
        return drive(make_run("react/turns"))

    words = ["user: hi", "assistant: tool_use", "assistant: noted", "tool: tool_result", "assistant: fine"]
    for run, _ in every_death(clock, story):
        assert turns_of(run)[0] == "assistant: welcome"
        assert sorted(turns_of(run)[1:]) == sorted(words)


def looking(monkeypatch, inline=64_000):
    """A run with a tool call, and what its turns hold."""

    @tool
    async def look(at: str) -> str:
        """Look."""
        return f"a view of {at} " * 9

    world.patch(monkeypatch, "INLINE_BYTES", inline)
    call = ToolUseBlock(tool_name="look", arguments={"at": "the sea"}, call_id="1")
    register(react(ScriptedModel([call, "Blue."]), tools=[look]))
    run = drive(make_run("react/turns"))
    return run, [turn.content for turn in Turn.objects.filter(run=run).order_by("index")]


@pytest.mark.sqlite
@pytest.mark.parametrize("gone", ["journal", "runs", "by Django"])
def test_what_the_journal_holds_is_stored_once_and_outlives_it(clock, monkeypatch, gone):
    run, contents = looking(monkeypatch)
    assert contents == [[{"type": "text", "text": "hi"}], None, None, None]
    said = turns_of(run)
    clock.advance(10.0)
    run.delete() if gone == "by Django" else world.prune({gone: 1.0})
    assert not JournalEntry.objects.exists()
    assert turns_of(run) == said
    left = None if run.id is None or gone == "runs" else run.id
    assert {(turn.by, turn.run_id) for turn in Turn.objects.whole()} == {("react/turns", left)}


def test_a_message_whose_row_only_names_its_body_is_stored_with_the_turn(monkeypatch):
    _, contents = looking(monkeypatch, inline=10)
    assert None not in contents


@pytest.mark.sqlite
def test_a_fork_has_the_conversation_by_value(monkeypatch):
    run, contents = looking(monkeypatch)
    assert None in contents
    later = drive(make_run("react/turns", session=run.session))
    copy = fork(later.id, 1, send=print)
    turns = Turn.objects.filter(run=run).order_by("position")
    past = [(turn.position, turn.role, turn.blocks, turn.created_at) for turn in turns.filter(session=run.session_id)]
    fields = ("position", "role", "content", "created_at")
    assert list(turns.filter(session=copy.session_id).values_list(*fields)) == past
