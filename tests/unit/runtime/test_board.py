"""Task boards: each change once, whatever dies; a thread's board holds the tasks of its whole tree."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import IntegrityError

from ravi_django.agents import ReActAgent
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, InvalidInputError, Message, ToolUseBlock
from ravi_django.models import BoardTask, Session, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.cases import case
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, every_death, idle, in_background, make_run, on_postgresql, until
from tests.support.tool_calls import calling
from tests.support.world import (
    TaskBoard,
    fork,
    register,
    task_agent_id,
    task_agent_label,
    task_parent_agent_id,
    task_thread_id,
)

pytestmark = pytest.mark.django_db(transaction=True)

TOOLS = TaskBoard().tools


def tasks():
    return [(task.agent, task.number, task.title, task.status) for task in BoardTask.objects.all()]


def board_frames(run):
    return [frame for frame in world.events_page(run.tree_id)[0] if frame["type"] == "board"]


def place(session=None, agent="test/code", run=None):
    run = run or make_run()
    return world.BoardKey((session or run.session).id, agent, "code", "", run.id)


def adding(*titles):
    async def story(ctx, inbox):
        return [(await ctx.tool("board_add", title=title)).text for title in titles]

    return code(story, tools=TOOLS)


def test_changes_are_transactional_and_named_for_the_model():
    promised = [(tool.name.removeprefix("board_"), tool.promised_effect) for tool in TOOLS]
    assert promised == [("add", "transactional"), ("update", "transactional"), ("list", "idempotent")]
    update = TOOLS[1].parameters["properties"]
    assert (update["number"]["maximum"], sorted(update)) == (100, ["detail", "number", "status", "title"])


def test_an_agent_keeps_its_tasks():
    async def story(ctx, inbox):
        await ctx.tool("board_add", title=" Find  the\nsource ", detail="In the archive.")
        await ctx.tool("board_add", title="Write it up")
        await ctx.tool("board_update", number=1, status="done")
        await ctx.tool("board_update", number=2, title="Write it down", detail="Short.")
        return (await ctx.tool("board_list")).text

    code(story, tools=TOOLS)
    run = drive(make_run())
    assert tasks() == [("test/code", 1, "Find the source", "done"), ("test/code", 2, "Write it down", "todo")]
    assert run.output == ("1. [done] Find the source\n    In the archive.\n2. [todo] Write it down\n    Short.")
    one = BoardTask.objects.get(number=1)
    assert (one.session_id, one.run_id, one.label, one.parent_agent) == (run.session_id, run.id, "code", "")


def test_a_bad_call_goes_back_to_the_model_and_changes_nothing():
    for name, arguments, words in (
        ("board_add", {"title": ""}, "title"),
        ("board_add", {"title": " \n"}, "a title has 1 to 200"),
        ("board_add", {"title": "x" * 201}, "title"),
        ("board_add", {"title": "x", "detail": "x" * 2001}, "detail"),
        ("board_update", {"number": 7, "status": "done"}, "no task 7"),
        ("board_update", {"number": 0, "status": "done"}, "number"),
        ("board_update", {"number": 10**12, "status": "done"}, "number"),
        ("board_update", {"number": 1}, "nothing to change"),
        ("board_update", {"number": 1, "status": "maybe"}, "status"),
    ):
        code(calling(name, **arguments), tools=TOOLS)
        run = drive(make_run())
        assert run.output.startswith("error: ") and words in run.output, (name, arguments)
        assert (tasks(), board_frames(run)) == ([], [])


def test_an_agent_changes_no_task_of_another():
    run = make_run()
    world.board_add(place(agent="test/other", run=run), "Not yours")
    code(calling("board_update", number=1, status="done"), tools=TOOLS)
    assert "you have no task 1" in drive(run).output
    assert tasks() == [("test/other", 1, "Not yours", "todo")]


def test_text_that_no_row_can_hold_is_kept_as_far_as_it_goes():
    where = place()
    world.board_add(where, "A\0B\ud800", "C\0D")
    world.board_update(where, 1, detail="E\0F")
    task = BoardTask.objects.get()
    assert (task.title, task.detail) == ("A\ufffdB?", "E\ufffdF")


def test_a_worker_that_dies_anywhere_adds_it_once(clock):
    adding("Once")
    for run, _ in every_death(clock, lambda drive: drive(make_run())):
        assert (run.status, run.output) == (Status.COMPLETED, '["Task added: 1. [todo] Once"]')
        assert tasks() == [("test/code", 1, "Once", "todo")]
        assert len(board_frames(run)) == 1


@on_postgresql
def test_two_runs_of_one_agent_at_once_get_numbers_of_their_own(monkeypatch):
    where = place()
    reached = []
    last = world.board_last_number

    def racing(found):
        number = last(found)
        if len(reached) < 2:
            reached.append(number)
            until(lambda: len(reached) == 2)
        return number

    world.patch(monkeypatch, "board_last_number", racing)
    added = [in_background(world.board_add, where, title) for title in ("One", "Two")]
    assert sorted(future.result(BOUND_S).number for future in added) == [1, 2]
    assert reached == [0, 0]


def test_a_row_that_cannot_be_written_is_no_taken_number():
    with pytest.raises(IntegrityError):
        world.board_add(replace(place(), session_id=None), "One")


def test_an_agent_and_a_thread_have_so_many_tasks_and_no_more(monkeypatch):
    run = make_run()
    world.board_add(place(run=run), "The first")
    BoardTask.objects.update(number=world.MAX_TASKS)
    with pytest.raises(InvalidInputError, match="100 tasks of yours"):
        world.board_add(place(run=run), "One more")
    world.patch(monkeypatch, "MAX_ALL", 2)
    assert world.board_add(place(run=run, agent="test/other"), "Mine").number == 1
    with pytest.raises(InvalidInputError, match="2 tasks of all agents"):
        world.board_add(place(run=run, agent="test/third"), "One")
    world.board_add(place(agent="test/third"), "In another session")


def test_a_childs_tasks_are_on_its_roots_board_and_nest_below_its_parent():
    call = ToolUseBlock(tool_name="board_add", arguments={"title": "Look it up"}, call_id="c1")
    register(ReActAgent("helper", model=ScriptedModel([call, "Found."]), tools=TOOLS, name="Helper"))

    async def story(ctx, inbox):
        await ctx.tool("board_add", title="Have it looked up")
        boot = Message(
            target=AgentId("react", "helper"),
            payload=ChatPayload(message=ChatMessage.of("user", "Look")),
            metadata={"parent_agent_id": str(ctx.agent_id)},
        )
        outcome = await ctx.ask(await ctx.spawn(AgentId("react", "helper"), boot), boot)
        return outcome.result["text"]

    code(story, tools=TOOLS)
    run = idle(make_run())
    assert (run.status, run.output) == (Status.COMPLETED, "Found."), run.error
    mine, its = BoardTask.objects.filter(session=run.session).order_by("id")
    assert BoardTask.objects.count() == 2
    assert (mine.agent, mine.number, mine.parent_agent) == ("test/code", 1, "")
    assert (its.agent, its.number, its.parent_agent, its.label) == ("react/helper", 1, "test/code", "Helper")
    assert its.run.parent_id == run.id
    assert [frame["task"]["agent"] for frame in board_frames(run)] == ["test/code", "react/helper"]
    assert board_frames(run)[1]["run"] == str(its.run_id)


def test_a_grandchild_that_says_nothing_of_its_parent_nests_below_it_too():
    async def leaf(ctx, inbox):
        await ctx.tool("board_add", title="Deep down")
        return (await ctx.tool("board_list", all_agents=True)).text

    async def middle(ctx, inbox):
        return (await ctx.join(await ctx.spawn(AgentId("test", "leaf"), "go"))).result

    async def story(ctx, inbox):
        await ctx.tool("board_add", title="On top")
        return (await ctx.join(await ctx.spawn(AgentId("test", "middle"), "go"))).result

    for key, function in (("leaf", leaf), ("middle", middle)):
        agent = code(function, tools=TOOLS)
        agent.id = AgentId("test", key)
        register(agent)
    code(story, tools=TOOLS)
    run = idle(make_run())
    assert run.output == "test/code:\n  1. [todo] On top\ntest/leaf, for test/middle:\n  1. [todo] Deep down"
    assert BoardTask.objects.filter(session=run.session).count() == 2


def test_an_agent_sees_nothing_of_another_conversation():
    world.board_add(place(), "Elsewhere")
    code(calling("board_list", all_agents=True), tools=TOOLS)
    assert drive(make_run()).output == "ok: There are no tasks on the board."


def named(thread, **fields):
    """An agent that sets the context variables as the shipped ones do."""

    async def story(ctx, inbox):
        task_agent_id.set("react/painter")
        task_agent_label.set("Painter")
        task_parent_agent_id.set("orchestrator/team")
        task_thread_id.set(thread)
        await ctx.tool("board_add", title="Paint")

    code(story, tools=TOOLS)
    drive(make_run(**fields))
    (task,) = BoardTask.objects.all()
    return task


def test_the_place_is_told_by_the_context_variables_that_are_set_inside_the_run(django_user_model):
    thread = world.create_session(Session())
    task = named(str(thread.id))
    assert (task.session, task.agent, task.label) == (thread, "react/painter", "Painter")
    assert task.parent_agent == "orchestrator/team"
    theirs = world.create_session(Session(owner=django_user_model.objects.create_user("bob")))
    other_tenant = world.create_session(Session(tenant="other"))
    nowhere = "no session's id", "0192f0c0-0000-7000-8000-000000000000"
    for other in (str(theirs.id), str(other_tenant.id), *nowhere):
        task.delete()
        with case(other):
            task = named(other)
            assert task.session_id == task.run.session_id


def test_a_frame_shows_the_task_as_it_is():
    async def story(ctx, inbox):
        await ctx.tool("board_add", title="One", detail="<b>bold</b>")
        await ctx.tool("board_update", number=1, status="doing")
        await ctx.tool("board_list")

    code(story, tools=TOOLS)
    run = drive(make_run())
    first, second = board_frames(run)
    task = BoardTask.objects.get()
    assert second["task"] == world.board_as_json(task)
    assert (first["task"]["status"], first["task"]["detail"]) == ("todo", "<b>bold</b>")
    assert set(second["task"]) == {
        *("id", "session", "agent", "label", "parent_agent", "run"),
        *("number", "title", "detail", "status", "created_at", "updated_at"),
    }
    results = [row.result["content"] for row in journal_of(run) if row.name == "board_add"]
    assert results == [[{"type": "text", "text": "Task added: 1. [todo] One"}]]


def test_a_fork_goes_on_with_the_board_that_its_past_knows():
    async def story(ctx, inbox):
        await ctx.tool("board_add", title="One", detail="Of the run.")
        await ctx.tool("board_update", number=2, status="doing")
        await ctx.sleep_until_signal("go")
        await ctx.tool("board_update", number=2, status="done")
        await ctx.tool("board_add", title="Later")
        return (await ctx.tool("board_list")).text

    code(story, tools=TOOLS)
    run = make_run()
    world.board_add(place(run=run), "From before")
    BoardTask.objects.update(created_at=run.created_at - timedelta(seconds=1))
    run = drive(run)
    point = run.next_seq - 1
    world.send_signal(run.id, "go", None)
    run = drive(run)
    assert run.output == "1. [todo] From before\n2. [done] One\n    Of the run.\n3. [todo] Later"
    copy = fork(run.id, point, send=lambda run_id: None)
    copied = BoardTask.objects.filter(session=copy.session).values_list("number", "title", "status")
    assert list(copied) == [(1, "From before", "todo"), (2, "One", "doing")]
    drive(copy)
    world.send_signal(copy.id, "go", None)
    assert drive(copy).output == run.output
    assert BoardTask.objects.filter(session=run.session).count() == 3
