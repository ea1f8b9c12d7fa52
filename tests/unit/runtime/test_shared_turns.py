"""One conversation, several agents: each reads its own turns and what the session's person said and was answered."""

import json
from io import StringIO

import pytest
from django.core.management import call_command

from ravi_django import register, submit, tool
from ravi_django.agents import AgentTool, OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import persist_turns
from ravi_django.agents.memory.compaction.strategy import CompactionPipeline
from ravi_django.agents.memory.compaction.summarization import SummarizationCompaction
from ravi_django.kernel import (
    ChatMessage,
    FinishAgentResult,
    RunContext,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from ravi_django.models import Session, Status, Turn
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.conversations import unpaired
from tests.support.runs import code, every_death, idle, make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


def call(name, **arguments):
    return ToolUseBlock(tool_name=name, arguments=arguments, call_id="c1")


def memory(**options):
    return ContextConfig(DjangoHistoryProvider(), **options)


def agent(key, script, *, context=None, **options):
    """`script`: that of its model, or a dict: by the text of the last message what the model answers."""
    by_text = [lambda messages, options: script[messages[-1].text]] * 9
    model = ScriptedModel(by_text if isinstance(script, dict) else script)
    return register(ReActAgent(key, model=model, context=context or memory(), **options))


def said(model, number=-1):
    return [(f"{m.name}: " if m.name else "") + m.text for m in model.calls[number].messages]


def run_of(key, text, session=None):
    run = idle(make_run(f"react/{key}", text=text, session=session))
    assert run.status == Status.COMPLETED, run.error
    return run


@pytest.mark.sqlite
def test_an_agent_that_takes_over_knows_the_conversation():
    b = ReActAgent("g1b", model=ScriptedModel("B"), context=memory())
    model, subs = ScriptedModel("Hello Ada"), [SubAgentConfig(b, handoff=True)]
    a = register(OrchestratorAgent("g1a", model=model, context=memory(), sub_agents=subs))

    def go(text, session=None):
        run = idle(submit(a if session is None else session.agent, text, session=session))
        run.session.refresh_from_db()
        return run

    first = go("My name is Ada.")
    model.script = [call("handoff_g1b", task="Say the user's name."), "never"]
    second = go("What is my name?", first.session)
    earlier = ["My name is Ada.", "g1a: Hello Ada", "What is my name?"]
    assert said(b.model) == [*earlier, "Say the user's name."]
    assert second.session.agent == "react/g1b"
    go("And now?", second.session)  # the session goes on with its present agent
    assert said(b.model) == [*earlier, "Say the user's name.", "B", "And now?"]
    third = agent("g1c", "C")
    run_of("g1c", "Who was here?", first.session)
    assert said(third.model) == [*earlier, "g1b: B", "And now?", "g1b: B", "Who was here?"], "no task, no tool call"


@tool
def leave(task: str, context: bool) -> FinishAgentResult:
    """Leave."""
    return FinishAgentResult("react/b", task or None, context=context)


@pytest.mark.parametrize(
    ("task", "context", "view"),
    [
        ("", True, ["one", "a: first", "two"]),
        ("do it", True, ["one", "a: first", "two", "do it"]),
        ("", False, ["two"]),
        ("do it", False, ["do it"]),
    ],
)
def test_a_message_that_is_passed_on_is_there_once(task, context, view):
    agent("a", {"one": "first", "two": call("leave", task=task, context=context)}, tools=[leave])
    b, c = agent("b", "taken"), agent("c", "seen")
    session = run_of("a", "one").session
    run_of("a", "two", session)
    assert said(b.model) == view
    run_of("c", "three", session)
    assert said(c.model) == ["one", "a: first", "two", "b: taken", "three"]


def test_an_orchestrator_hands_over_without_the_conversation():
    b = ReActAgent("alone", model=ScriptedModel("B"), context=memory())
    sub = SubAgentConfig(b, handoff=True, context=False)
    model = ScriptedModel("first")
    a = register(OrchestratorAgent("g9a", model=model, context=memory(), sub_agents=[sub]))
    first = idle(submit(a, "one"))
    model.script = [call("handoff_alone", task="do it")]
    idle(submit(a, "two", session=first.session))
    assert said(b.model) == ["do it"]


def test_a_handoff_at_each_death_gives_the_other_one_view(clock):
    agent("a", {"one": "first", "two": call("leave", task="", context=True)}, tools=[leave])
    b = agent("b", "taken")

    def story(drive):
        session = drive(make_run("react/a", text="one")).session
        run = drive(make_run("react/a", text="two", session=session))
        return drive(run) if run.status == Status.PENDING else run

    for run, _ in every_death(clock, story):
        idle(run)
        assert (run.status, run.agent, said(b.model)) == (Status.COMPLETED, "react/b", ["one", "a: first", "two"])
        shared = Turn.objects.filter(shared=True).whole().values_list("by", "role")
        assert [*shared] == [
            (f"react/{key}", role) for key, role in zip("aaab", ["user", "assistant"] * 2, strict=True)
        ]


def test_code_hands_over_too_and_a_router_without_a_memory_takes_nothing_away():
    async def route(ctx, inbox):
        await ctx.handoff("react/b")

    code(route)
    b, c = agent("b", "taken"), agent("c", "seen")
    session = run_of("c", "one").session
    idle(make_run("test/code", text="two", session=session))
    run_of("c", "three", session)
    assert said(b.model) == ["one", "c: seen", "two"]
    assert said(c.model) == ["one", "seen", "two", "b: taken", "three"]


def test_another_agent_reads_answers_and_nothing_else():
    @tool
    def look() -> str:
        """Look."""
        return "a secret"

    thought = [ThinkingBlock(text="hm", signature="s"), TextBlock(text="answer")]
    agent("helper.2@" + "x" * 70, [call("look"), thought], tools=[look])
    other = agent("other", "mine")
    session = run_of("helper.2@" + "x" * 70, "one").session
    run_of("other", "two", session)
    assert said(other.model) == ["one", f"helper_2_{'x' * 55}: answer", "two"]
    assert other.model.calls[0].messages[1].content == [TextBlock(text="answer")]
    for retention in ("none", "run"):
        agent(retention, [call("wait")], context=memory(retention=retention), tools=[wait])
        assert idle(make_run(f"react/{retention}", text="three", session=session)).status == Status.SUSPENDED
    run_of("other", "four", session)
    assert said(other.model)[2:] == ["two", "mine", "four"], "an agent that keeps nothing shares nothing"


def test_a_childs_turns_are_its_own():
    agent("sub", "noted")
    agent("boss", [call("handoff_sub", task="Remember 42."), "ok"], tools=[AgentTool("react/sub")])
    run_of("boss", "go")
    kinds = set(Turn.objects.whole().values_list("by", "shared"))
    assert kinds == {("react/boss", True), ("react/boss", False), ("react/sub", False)}


def test_an_answer_that_is_no_valid_result_is_not_shared():
    schema = {"type": "object", "required": ["order"]}
    agent("typed", [lambda messages, options: '{"order": 3}' if messages[-1].name else "none"], result_model=schema)
    other = agent("other", "ok")
    session = run_of("typed", "one").session
    run_of("other", "two", session)
    assert said(other.model) == ["one", 'typed: {"order": 3}', "two"]


def test_agents_within_the_code_of_another_share_no_drafts():
    inner = [agent(key, key) for key in ("first", "second")]

    async def story(ctx, inbox):
        for one in inner:
            with ctx.scope(one.id.key):
                await one.run(ctx, inbox)
        await persist_turns(memory(), ctx.agent_id, ctx.session_id, ctx.run_id, [ChatMessage.of("assistant", "last")])

    code(story, model=ScriptedModel("draft"))  # also the model of the agents inside
    other = agent("other", "ok")
    session = idle(make_run(text="one")).session
    run_of("other", "two", session)
    assert said(other.model) == ["one", "code: last", "two"]


def test_code_that_stores_turns_itself_shares_them_too():
    async def story(ctx, inbox):
        turns = [("user", inbox[0].text), ("user", "a note"), ("assistant", "draft"), ("assistant", "last")]
        new = [ChatMessage.of(*turn) for turn in turns]
        await persist_turns(memory(), ctx.agent_id, ctx.session_id, ctx.run_id, new)

    code(story)
    other = agent("other", "ok")
    session = idle(make_run(text="one")).session
    run_of("other", "two", session)
    assert said(other.model) == ["one", "code: last", "two"]


@tool
async def wait(ctx: RunContext) -> str:
    """Wait."""
    await ctx.sleep_until_signal("go")
    return "waited"


def shown(messages, options):
    return "saw " + "|".join(message.text for message in messages)


def test_what_comes_while_an_agent_waits_in_a_tool_stands_behind_its_result():
    waits = agent("waits", {"one": call("wait"), "waited": "done", "three": "again"}, tools=[wait])
    agent("other", "quick")
    run = idle(make_run("react/waits", text="one"))
    run_of("other", "two", run.session)
    world.signal(run.id, "go")
    assert idle(run).output == "done"
    assert said(waits.model) == ["one", "", "waited"]
    run_of("waits", "three", run.session)
    assert said(waits.model) == ["one", "", "waited", "two", "other: quick", "done", "three"]
    assert not unpaired(waits.model.calls[-1].messages)


@pytest.mark.sqlite
def test_a_summary_covers_both_and_nothing_that_its_run_had_not_read():
    """Turns of another agent that came after the read are behind the summary, although they are older rows."""

    class Summing(ScriptedModel):
        async def _item(self, turn, messages, options):
            if messages[0].text.startswith("You keep the memory"):
                summarized.append(messages[1].text)
                return "the summary"
            return {"one": call("wait"), "waited": "done", "two": "again"}[messages[-1].text]

    summarized = []
    pipeline = CompactionPipeline(SummarizationCompaction(4, keep_last=2))
    model = Summing("")
    register(ReActAgent("sums", model=model, tools=[wait], context=memory(pipeline=pipeline)))
    agent("other", {"early": "first answer", "later": "second answer", "meanwhile": "late answer"})
    session = run_of("other", "early").session
    run_of("other", "later", session)
    run = idle(make_run("react/sums", text="one", session=session))
    run_of("other", "meanwhile", session)
    world.signal(run.id, "go")
    assert idle(run).output == "done"
    assert "user: early\n\nassistant other: first answer" in summarized[0]
    run_of("sums", "two", session)
    assert said(model)[0].endswith("the summary")
    assert not {"early", "other: first answer"} & set(said(model))
    kept = "\n".join([*summarized, *said(model)])
    every = ("later", "second answer", "one", "tool result: waited", "meanwhile", "late answer", "done")
    assert [text for text in every if text not in kept] == []


def test_a_replay_reads_the_same_though_others_go_on_meanwhile(clock):
    agent("reader", [shown])
    agent("other", "answer")

    def story(drive):
        session = drive(make_run("react/other", text="one")).session
        run = make_run("react/reader", text="two", session=session)
        return drive(run, meanwhile=lambda: drive(make_run("react/other", text="three", session=session)))

    for run, _ in every_death(clock, story):
        (read,) = (row for row in journal_of(run) if row.kind == "history.read")
        assert run.output == {2: "saw one|answer|two", 4: "saw one|answer|three|answer|two"}[read.result["position"]]
        assert not [row for row in journal_of(run) if row.kind == "replay.drift"]


@pytest.mark.sqlite
def test_forks_exports_and_pruned_journals_keep_what_is_shared(clock, django_user_model):
    owner = django_user_model.objects.create_user("owner")
    agent("a", "first")
    b = agent("b", "second")
    run = idle(make_run("react/a", text="one", session=world.create_session(Session(owner=owner)), owner=owner))
    run = run_of("b", "two", run.session)
    copy = world.fork(run.id, 1, send=lambda run_id: None)
    assert idle(copy).status == Status.COMPLETED
    assert said(b.model) == said(b.model, 0) == ["one", "a: first", "two"]
    assert Turn.objects.filter(session=copy.session, shared=True).count() == 4
    clock.advance(99 * 86_400)
    world.prune({"journal": 86_400})
    assert not journal_of(run)
    run_of("b", "three", run.session)
    assert said(b.model) == ["one", "a: first", "two", "second", "three"]
    call_command("ravi_export", "owner", stdout=(out := StringIO()))
    rows = [row["fields"] for row in json.loads(out.getvalue()) if row["model"] == "ravi.turn"]
    assert [row["shared"] for row in rows] == [True] * 6


def test_the_retention_of_a_run_is_what_its_agent_states():
    seen = {}

    @tool
    def look(ctx: RunContext) -> str:
        """Look."""
        seen[ctx.agent_id.key] = str(ctx.meta.supervision.retention)
        return "x"

    for key, context in (
        ("none", memory(retention="none")),
        ("run", ContextConfig(retention="run")),
        ("permanent", ContextConfig()),
    ):
        agent(key, [call("look"), "ok"], context=context, tools=[look])
        run_of(key, "go")
        assert seen[key] == key
