"""A message to a conversation whose agent is at work."""

from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from ravi_django import asubmit, register, submit
from ravi_django.agents import ReActAgent, tool
from ravi_django.checks import check_settings
from ravi_django.kernel import IdempotencyMismatchError, InvalidInputError, ThreadBusyError, ToolUseBlock
from ravi_django.models import InboxMessage, JournalEntry, Run, Status, first_id_of
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.runs import code, drive, every_death, make_run, message

pytestmark = pytest.mark.django_db(transaction=True)


def texts(messages):
    return [message.payload.message.text for message in messages]


@pytest.fixture
def busy(clock):
    """A run that waits for the signal `go`."""

    async def story(ctx, inbox):
        if texts(inbox) == ["first"] and await ctx.sleep_until_signal("go") == "fail":
            raise ValueError("no")
        return ", ".join(texts(inbox))

    code(story)
    return drive(submit("test/code", "first"))


def say(run, on_busy, text="second", agent="test/code", **options):
    return submit(agent, text, session=run.session_id, on_busy=on_busy, **options)


def test_it_waits_behind_the_run_unless_the_site_says_otherwise(busy, settings):
    assert say(busy, None).status == Status.QUEUED
    settings.RAVI = {**settings.RAVI, "ON_BUSY": "reject"}
    with pytest.raises(ThreadBusyError):
        say(busy, None)
    settings.RAVI = {**settings.RAVI, "ON_BUSY": "wait"}
    assert "ravi.E034" in [found.id for found in check_settings()]


def test_it_is_refused(busy):
    with pytest.raises(ThreadBusyError, match="at work"):
        say(busy, "reject")
    with pytest.raises(InvalidInputError) as wrong:
        say(busy, "later")
    assert (wrong.value.field, Run.objects.count(), InboxMessage.objects.count()) == ("on_busy", 1, 1)


def test_it_interrupts_the_run_and_no_other(busy):
    waiting = say(busy, "enqueue")
    run = say(busy, "interrupt", "third")
    busy.refresh_from_db()
    assert (busy.status, busy.error["message"]) == (Status.CANCELLED, "interrupted by a later message")
    assert [drive(each).output for each in (waiting, run)] == ["second", "third"]


def test_it_steers_the_run(busy):
    assert say(busy, "steer", idempotency_key="k").id == busy.id
    assert say(busy, "steer", idempotency_key="k").id == busy.id
    with pytest.raises(IdempotencyMismatchError):
        say(busy, "steer", "third", idempotency_key="k")
    assert texts_in(busy) == ["first", "second"]
    world.send_signal(busy.id, "go", None)
    assert drive(busy).output == "second"

    assert say(busy, "steer", "third").id != busy.id, "nothing to steer: a run of its own"


def test_it_steers_no_run_from_inside_a_transaction_or_that_cannot_read_it(busy):
    with transaction.atomic():
        assert say(busy, "steer").status == Status.QUEUED, "a lock would hold up the run"
    at_work = Run.objects.filter(id=busy.id)
    for changes in ({"cancel_requested_at": Now()}, {"cancel_requested_at": None, "status": Status.BLOCKED}):
        at_work.update(**changes)
        assert say(busy, "steer", "third").status == Status.QUEUED, changes


@pytest.mark.parametrize("end", [Status.CANCELLED, Status.FAILED])
def test_a_run_that_does_not_complete_passes_it_on(busy, end):
    say(busy, "steer")
    if end == Status.CANCELLED:
        world.cancel(busy.id, "enough")
    else:
        world.send_signal(busy.id, "go", "fail")
        drive(busy)
    assert Run.objects.get(id=busy.id).status == end
    run = Run.objects.exclude(id=busy.id).get()
    assert (run.status, drive(run).output) == (Status.PENDING, "second")


def texts_in(run):
    return [row.body["payload"]["message"]["content"][0]["text"] for row in InboxMessage.objects.filter(run=run)]


# ------------------------------------------------------------------------------------------------- a ReAct agent


@tool
def look() -> str:
    """Look."""
    return "done"


LOOK = ToolUseBlock(tool_name="look", arguments={}, call_id="1")


def react(answer, *, tools=(look,), **options):
    model = ScriptedModel([answer], loop=True)
    register(ReActAgent("steered", model=model, tools=tools, **options))
    return model


async def steer():
    session = (await Run.objects.aget()).session_id
    await asubmit("react/steered", "in French", session=session, on_busy="steer", idempotency_key="k")


def test_a_react_agent_reads_it_after_the_tools_of_its_turn(clock):
    async def answer(messages, options):
        if "in French" in [message.text for message in messages]:
            return "Bonjour"
        if messages[-1].role == "tool":
            return "Hello"
        await steer()
        return LOOK

    def one(drive):
        react(answer)
        return drive(make_run("react/steered", text="Say hello"))

    for run, death in every_death(clock, one):
        assert (run.status, run.output, run.error) == (Status.COMPLETED, "Bonjour", None), death
        # A worker that dies before it has recorded anything leaves both messages to the next one, as its first batch.
        both = (death.at, death.written, death.came) == (1, False, True)
        assert JournalEntry.objects.filter(kind="llm.call").count() == (3 if both else 2), death


def test_a_replay_reads_it_after_the_same_turn(clock):
    async def answer(messages, options):
        turns = sum(message.role == "tool" for message in messages)
        if turns == 1:
            await steer()
        return LOOK.model_copy(update={"call_id": str(turns)}) if turns < 3 else "Bonjour"

    def one(drive):
        react(answer)
        return drive(make_run("react/steered", text="Say hello"))

    for run, death in every_death(clock, one):
        assert (run.status, run.output, run.error) == (Status.COMPLETED, "Bonjour", None), death
        was_lost = (death.at, death.written, death.came) == (2, False, True)  # the call during which it came
        paths = JournalEntry.objects.filter(kind="msg.received").values_list("path", flat=True)
        assert list(paths) == ["heard.1" if was_lost else "heard~2.1"], death


def test_a_react_agent_reads_what_was_said_while_a_tool_ran(clock, monkeypatch):
    world.patch(monkeypatch, "QUICK_S", 0.0)

    @tool
    async def look() -> str:
        """Meanwhile somebody says more."""
        await steer()
        return "done"

    def answer(messages, options):
        return "Bonjour" if "in French" in [message.text for message in messages] else LOOK

    model = react(answer, tools=[look])
    assert drive(make_run("react/steered")).output == "Bonjour"
    assert len(model.calls) == 2


def test_what_does_not_steer_waits_for_its_turn(clock):
    """Such as a question of another run."""

    @sync_to_async
    def ask():
        run = Run.objects.get()
        InboxMessage.objects.get_or_create(run=run, message_id="2", defaults={"body": message("two", run.agent)})
        world.touch([run.id])

    async def answer(messages, options):
        if messages[-1].role == "tool":
            return ", ".join(message.text for message in messages if message.role == "user")
        await ask()
        return LOOK

    model = react(answer)
    assert drive(make_run("react/steered", text="one")).status == Status.COMPLETED
    assert [call.messages[-1].role for call in model.calls] == ["user", "tool", "user", "tool"]


def test_one_that_comes_in_the_last_turn_is_left_to_the_next_run(clock):
    async def answer(messages, options):
        if messages[-1].text == "in French":
            return "Bonjour"
        await steer()
        return LOOK

    react(answer, max_iterations=1)
    run = drive(make_run("react/steered"))
    assert (run.status, run.error["type"]) == (Status.FAILED, "BudgetExhaustedError")
    assert drive(Run.objects.exclude(id=run.id).get()).output == "Bonjour"


@pytest.mark.sqlite
def test_messages_are_answered_in_the_order_of_the_databases_clock():
    """The clock of one web process is ahead; ids are of its time."""
    heard = []

    async def story(ctx, inbox):
        heard.append(inbox[0].payload.message.text)

    code(story)
    first = make_run()
    ahead = first_id_of(timezone.now() + timedelta(seconds=30))
    more = {"two": ahead, "three": None}
    runs = [world.submit_once("test/code", text, session=first.session, run_id=id)[0] for text, id in more.items()]
    for run in (first, *runs):
        assert drive(run).status == Status.COMPLETED
    assert heard == ["hi", "two", "three"]
