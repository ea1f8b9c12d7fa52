"""What a delegated agent remembers: the tasks and answers of its earlier child runs in one conversation."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from ravi_django import errors, register, signal, submit, tool
from ravi_django.agents import AgentTool, ContextConfig, OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, InvalidInputError, Message, RunContext, ToolUseBlock
from ravi_django.models import Run, Session, Turn
from ravi_django.models.session import by_agent
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.runs import code, drive, every_death, idle, make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]

REMEMBERED = ["Remember 42.", "noted", "Which number?"]


def tell(task, call_id="c1", key="sub"):
    return ToolUseBlock(tool_name=f"handoff_{key}", arguments={"task": task}, call_id=call_id)


LOOK = ToolUseBlock(tool_name="look", call_id="l1")


def memory():
    return ContextConfig(DjangoHistoryProvider())


def ask(boss, *says, session=None, **options):
    boss.model.script = [*says, "ok"]
    run = submit(boss, "go on", session=session, **options)
    run_until_idle()
    return run


def texts(call):
    return [message.text for message in call.messages]


def team(script="noted", tools=(), kind="conversation"):
    """An orchestrator and its sub-agent."""
    sub = ReActAgent("sub", model=ScriptedModel(script), tools=tools, context=memory())
    configs = [SubAgentConfig(sub, memory=kind)]
    return register(OrchestratorAgent("boss", model=ScriptedModel("ok"), sub_agents=configs), replace=True), sub


@pytest.mark.parametrize("delegating", [
    lambda sub: {"sub_agents": [SubAgentConfig(sub)]},
    lambda sub: {"sub_agents": [], "tools": [AgentTool(sub)]},
    lambda sub: {"sub_agents": [], "tools": [sub]},
])  # fmt: skip
def test_a_sub_agent_remembers_within_the_conversation_and_nowhere_else(delegating):
    sub = ReActAgent("sub", model=ScriptedModel("noted"), context=memory())
    boss = register(OrchestratorAgent("boss", model=ScriptedModel("ok"), **delegating(sub)))
    first = ask(boss, tell("Remember 42."))
    ask(boss, tell("Which number?"), session=first.session)
    assert texts(sub.model.calls[-1]) == REMEMBERED
    ask(boss, tell("Which number?"))
    assert texts(sub.model.calls[-1]) == ["Which number?"]


@tool(name="look")
def says(ctx: RunContext) -> str:
    """Look at the retention."""
    return str(ctx.meta.supervision.retention.value)


@tool(name="look")
async def look_later(ctx: RunContext) -> str:
    """Look."""
    await ctx.sleep_until_signal("go")
    return "x"


def test_a_takeover_reads_what_was_read_before_although_a_sibling_has_ended(clock):
    """Two child runs of one agent at the same time. The worker of the first dies at each commit, and the second ends
    before the takeover."""
    models = []

    def story(drive_and_die):
        boss, sub = team([LOOK, "noted"], [says])
        first = ask(boss, tell("Remember 42."))
        boss.model.script = [[tell("One?", "a"), tell("Two?", "b")], "ok"]
        run = drive(submit(boss, "go on", session=first.session))
        one, two = Run.objects.filter(parent=run).order_by("id")
        sub.model.calls.clear()
        models[:] = [sub.model]
        drive_and_die(one, meanwhile=lambda: drive(two))
        run_until_idle()
        return one

    for one, death in every_death(clock, story):
        views = [view for call in models[0].calls if "One?" in (view := texts(call))]
        if "history.read" in death.rows and not death.written:
            del views[0]  # the read was not recorded: the takeover reads again, with the sibling's turns
        assert one.status == "completed" and views[0][-1] == "One?"
        assert views[0][:4] == ["Remember 42.", "", "permanent", "noted"]
        assert all(view[: len(views[0])] == views[0] for view in views)
        assert "replay.drift" not in [row.kind for row in journal_of(one)]


@pytest.mark.sqlite
def test_earlier_tasks_come_in_the_order_of_their_ends():
    boss, sub = team([LOOK, "noted"], [look_later])
    boss.model.script = [[tell("One.", "a"), tell("Two.", "b")], "ok"]
    run = drive(submit(boss, "go on"))
    children = [drive(child) for child in Run.objects.filter(parent=run).order_by("id")]
    assert [texts(call) for call in sub.model.calls] == [["One."], ["Two."]], "nothing of one that is at work"
    for child in reversed(children):
        signal(child, "go")
        run_until_idle()
    ask(boss, tell("Three."), session=run.session)
    task = lambda: [text for text in texts(sub.model.calls[-1]) if text.endswith(".")]  # noqa: E731
    assert task() == ["Two.", "One.", "Three."]
    # a summary of the one does not cover what the other has done at the same time
    last = Turn.objects.filter(session__runs__parent=run).latest("created_at", "position")
    Turn.objects.filter(pk=last.pk).update(role="system", keeps=0)
    signal(Run.objects.get(status="suspended", parent__isnull=False), "go")
    ask(boss, tell("Four."), session=run.session)
    assert task() == ["Two.", "One.", "Three.", "Four."]


@pytest.mark.parametrize("kind", ["conversation", "none"])
def test_an_agent_below_one_that_remembers_does_so_too(kind):
    low = ReActAgent("low", model=ScriptedModel("low"), context=memory())
    boss, _ = team([tell("Below.", key="low"), "noted"], [low], kind)
    first = ask(boss, tell("One."))
    ask(boss, tell("Two."), session=first.session)
    assert texts(low.model.calls[-1]) == (["Below.", "low", "Below."] if kind == "conversation" else ["Below."])
    assert Turn.objects.filter(by_agent("react/low")).count() == (4 if kind == "conversation" else 0)


@pytest.mark.parametrize("ends", ["completed", "cancelled"])
def test_a_child_without_memory_leaves_no_turns(ends):
    boss, sub = team([LOOK, "noted"], [look_later], "none")
    run = ask(boss, tell("Remember 42."))
    child = Run.objects.get(parent=run)
    assert child.session.turns.count() == 2
    if ends == "cancelled":
        child.cancel()
    else:
        signal(child, "go")
    run_until_idle()
    child.refresh_from_db()
    assert (child.status, child.session.turns.count()) == (ends, 0)
    ask(boss, tell("Which number?"), session=run.session)
    assert texts(sub.model.calls[-1]) == ["Which number?"]


def test_code_has_to_ask_for_memory(clock):
    sub = register(ReActAgent("sub", model=ScriptedModel("noted"), context=memory()))

    async def asks(ctx, inbox):
        how = {} if inbox[0].payload.message.text == "plain" else {"memory": "conversation"}
        await ctx.ask(sub.id, "by ask", **how)
        await ctx.join(await ctx.spawn(sub.id, "by spawn", **how))
        with pytest.raises(InvalidInputError, match='memory must be "conversation" or "none", not \'session\''):
            await ctx.spawn(sub.id, "no", memory="session")

    code(asks)
    session = idle(make_run(text="plain")).session
    assert not Turn.objects.exists()
    assert idle(make_run(text="with", session=session)).status == "completed"
    assert texts(sub.model.calls[-1]) == ["by ask", "noted", "by spawn"]


@pytest.mark.sqlite
def test_of_many_tasks_the_newest_are_read_and_the_last_summary_before_them():
    boss, sub = team()
    first = ask(boss, tell("0"))
    Turn.objects.filter(role="assistant", session__memory_of=first.session_id).update(role="system", keeps=0)
    for number in range(1, 25):
        ask(boss, tell(str(number)), session=first.session)
    seen = texts(sub.model.calls[-1])
    assert seen[0].endswith("noted") and seen[1::2] == [str(number) for number in range(4, 25)]
    child = Run.objects.select_related("session").filter(agent="react/sub").latest("id")
    with CaptureQueriesContext(connection) as queries:
        world.read_remembered(sub.id, child.session, 0, None)
    assert len(queries) == 1


def test_a_fork_takes_the_memory_along():
    boss, sub = team()
    first = ask(boss, tell("Remember 42."))
    second = ask(boss, tell("Remember 43."), session=first.session)
    boss.model.script = [tell("Which number?"), "ok"]
    world.fork_once(second.id, input="edited")
    run_until_idle()
    assert texts(sub.model.calls[-1]) == REMEMBERED


@pytest.mark.sqlite
def test_the_memory_belongs_to_the_conversation(django_user_model):
    ada = django_user_model.objects.create_user("ada", is_superuser=True)
    run = ask(team()[0], tell("Remember 42."), user=ada)
    client = APIClient()
    client.force_authenticate(ada)
    assert [row["id"] for row in client.get("/ravi/sessions/").json()["results"]] == [str(run.session_id)]
    exported = [row for row in world.export(ada) if row["model"] == "ravi.turn"]
    assert "Remember 42." in str(exported)
    assert client.delete(f"/ravi/sessions/{run.session_id}/").status_code == 204
    world.erasing_sweep()
    assert not Turn.objects.exists() and not Session.objects.exists()


def test_only_a_child_writes_to_the_session_of_a_child():
    run = ask(team()[0], tell("Remember 42."))
    child = Session.objects.get(parent_session=run.session_id)
    for word in (child, child.id, str(child.id)):
        with pytest.raises(errors.SessionNotFoundError):
            submit("react/sub", "hi", session=word)
    hi = ChatPayload(message=ChatMessage.of("user", "hi"))
    word = Message(target=AgentId("react", "sub"), payload=hi, correlation_id=str(child.id))
    assert submit("react/sub", word).session_id != child.id


@pytest.mark.parametrize("whose", ["boss", "sub"])
def test_a_stated_retention_holds_for_the_memory_of_a_delegation(whose):
    stated = {whose: {"retention": "none"}}
    sub = ReActAgent("sub", model=ScriptedModel([LOOK, "noted"]), tools=[says], **stated.get("sub", {}))
    boss = register(ReActAgent("boss", model=ScriptedModel("ok"), tools=[sub], **stated.get("boss", {})))
    first = ask(boss, tell("Remember 42."))
    ask(boss, tell("Which number?"), session=first.session)
    assert texts(sub.model.calls[-1]) == ["Which number?", "", "run" if whose == "boss" else "none"]
    assert not Turn.objects.filter(by_agent("react/sub")).exists()
