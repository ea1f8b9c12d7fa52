"""Submitting writes rows in the caller's transaction, and is never undone by what comes after."""

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections, transaction

from ravi_django import asubmit, submit, tasks
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    AgentNotFoundError,
    ChatMessage,
    ChatPayload,
    ExecutionBudget,
    IdempotencyMismatchError,
    InputTooLargeError,
    InvalidInputError,
    Message,
    Priority,
    SessionNotFoundError,
    TextBlock,
)
from ravi_django.models import InboxMessage, Run, Session, Status
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.cases import case, refused
from tests.support.patience import seconds
from tests.support.runs import code, in_background
from tests.support.world import submit_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def agent():
    async def story(ctx, inbox):
        return inbox[0].payload.message.text.upper()

    return code(story)


@pytest.fixture
def hints(monkeypatch):
    """Where the hints go."""
    sent = []
    world.patch(monkeypatch, "dispatch_send", sent.append)
    return sent


@pytest.fixture
def bob():
    return User.objects.create_user("bob")


@pytest.mark.sqlite
def test_a_submitted_run_is_rows_and_then_a_hint(hints, ann):
    run = submit("test/code", "hello", user=ann, metadata={"k": 1})

    stored = Run.objects.select_related("session").get()
    assert stored == run
    assert (stored.status, stored.owner, stored.agent, stored.metadata) == ("pending", ann, "test/code", {"k": 1})
    assert (stored.session.owner, stored.session.title, stored.session.agent) == (ann, "hello", "test/code")
    assert InboxMessage.objects.get().body["payload"]["message"]["content"] == [{"type": "text", "text": "hello"}]
    assert hints == [run.id]


def test_a_rollback_leaves_no_run_and_sends_nothing(hints):
    with pytest.raises(RuntimeError), transaction.atomic():
        submit("test/code", "hello")
        assert Run.objects.count() == 1
        raise RuntimeError

    assert not Run.objects.exists()
    assert not Session.objects.exists()
    assert not InboxMessage.objects.exists()
    assert hints == []
    with transaction.atomic():
        submit("test/code", "hello")
        assert hints == []
    assert len(hints) == 1

    async def main():
        run = await asubmit("test/code", "hello")
        await sync_to_async(connections.close_all)()
        return run

    run = asyncio.run(main())
    assert hints[1:] == [run.id], "asubmit does the same"


def test_a_failing_hint_does_not_reach_the_caller(monkeypatch, caplog):
    world.patch(monkeypatch, "dispatch_send", lambda run_id: 1 / 0)

    run = submit("test/code", "hello")

    assert Run.objects.get().status == Status.PENDING
    assert f"run {run.id}: no hint sent" in caplog.text


@pytest.fixture
def dead_broker(settings, monkeypatch):
    """A broker at an address where nobody listens."""
    from project.celery import app
    from project.services import free_port

    world.patch(monkeypatch, "dispatch_down_until", 0.0)
    url = f"redis://127.0.0.1:{free_port()}/0"
    app.conf.broker_url = app.conf.broker_write_url = url
    return url


def test_many_submits_with_the_broker_down_do_not_wait_for_it_each_time(dead_broker, settings, monkeypatch):
    settings.RAVI = {**settings.RAVI, "ENGINE": "celery"}
    tried, send = [], tasks.run.apply_async
    monkeypatch.setattr(tasks.run, "apply_async", lambda **options: tried.append(options["retry"]) or send(**options))
    world.patch(monkeypatch, "DISPATCH_REST_S", 1000.0)

    for _ in range(20):
        submit("test/code", "hello")

    assert tried == [False]
    assert Run.objects.filter(status=Status.PENDING).count() == 20
    found = []
    assert world.sweeper_sweep(found.extend).hinted == 20
    assert sorted(found) == sorted(Run.objects.values_list("id", flat=True))


@pytest.mark.parametrize(
    "change",
    [
        {"input": "other"},
        {"priority": "high"},
        {"budget": {"max_turns": 3}},
        {"deadline": "2040-01-01T00:00:00Z"},
        {"metadata": {"k": 2}},
        {"session": "own"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_repeated_key_with_another_body_is_a_mismatch(hints, ann, change):
    given = {"input": "hello", "metadata": {"k": 1}}
    submit("test/code", **given, user=ann, idempotency_key="k")
    if change.get("session") == "own":
        change = {"session": Session.objects.get().id}

    with pytest.raises(IdempotencyMismatchError, match="use a new key"):
        submit("test/code", **{**given, **change}, user=ann, idempotency_key="k")

    assert Run.objects.count() == 1


def test_a_key_belongs_to_its_user_and_agent(hints, ann, bob):
    world.register(ReActAgent("other", model=ScriptedModel("x")))

    runs = {
        submit(agent, "hello", user=user, idempotency_key="k").id
        for agent in ("test/code", "react/other")
        for user in (ann, bob, None)
    }

    assert len(runs) == 6


@pytest.mark.sqlite
def test_of_eight_that_race_with_one_key_one_makes_the_run_inside_transactions_too(hints):
    def post(key, inside):
        with transaction.atomic() if inside else nullcontext():
            run, created = submit_once("test/code", "hello", idempotency_key=key)
        return run.id, created

    for key, inside in (("k", False), ("inside", True)):
        answers = [posted.result(seconds(30)) for posted in [in_background(post, key, inside) for _ in range(8)]]
        assert sorted(created for _, created in answers) == [False] * 7 + [True]
        assert {run_id for run_id, _ in answers} == {Run.objects.latest("id").id}
    assert (Run.objects.count(), Session.objects.count(), len(hints)) == (2, 2, 2)


def test_somebody_elses_session_does_not_exist(hints, ann, bob):
    session = submit("test/code", "hello", user=ann).session

    for unknown in (session.id, uuid4()):
        with pytest.raises(SessionNotFoundError) as caught:
            submit("test/code", "again", user=bob, session=unknown)
        assert caught.value.field == "session"

    assert Run.objects.count() == 1


@pytest.mark.parametrize("how", [str, lambda value: value])
def test_a_session_of_ones_own_goes_on(hints, ann, how):
    first = submit("test/code", "hello", user=ann)

    second = submit("test/code", "again", user=ann, session=how(first.session_id))

    assert second.session_id == first.session_id
    assert (second.status, len(hints)) == (Status.QUEUED, 1)


def talking(replies):
    """An agent with a memory, whose model tells what it was shown of the conversation."""

    def say(messages, options):
        return f"{replies.pop(0)}: " + " / ".join(message.text for message in messages if message.role != "system")

    return world.register(
        ReActAgent("talker", model=ScriptedModel([say]), context=ContextConfig(DjangoHistoryProvider()))
    )


@pytest.mark.sqlite
def test_a_second_message_waits_for_the_first_and_sees_it(hints):
    talking(["A", "B"])
    first = submit("react/talker", "one")
    second = submit("react/talker", "two", session=first.session)
    assert second.status == Status.QUEUED

    run_until_idle()

    first.refresh_from_db()
    second.refresh_from_db()
    assert first.output == "A: one"
    assert second.output == "B: one / A: one / two"


NO_JSON = object()


BAD = {
    "input": [
        "",
        "  \n",
        [],
        None,
        7,
        {"text": "x"},
        ["text"],
        [{"type": "text"}],
        [NO_JSON],
        "nul \x00",
        "half \ud800",
    ],
    "session": ["", "n" * 201, "a\nb", "nul \x00", "half \ud800", 7],
    "priority": ["urgent", 3],
    "budget": [{"max_turns": 0}, {"max_turn": 1}, "much"],
    "deadline": ["soon", "2030-13-01T00:00:00Z", 7],
    "metadata": [[], {"x": NO_JSON}, {"x": "y" * 20_000}, {"x": "nul \x00"}],
    "idempotency_key": ["", "k" * 201, 7],
    "tenant": ["t" * 101],
}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bad_input_names_its_field_and_writes_nothing(hints):
    for field, values in BAD.items():
        for value in values:
            with case(field, value), refused(field):
                submit("test/code", **{"input": "hello", field: value})
    for agent in ("code", "", "a b/c", 7, None):
        with case(agent), pytest.raises(InvalidInputError):
            submit(agent, "hello")
    for agent in ("test/nobody", AgentId("test", "nobody")):
        with pytest.raises(AgentNotFoundError, match="test/nobody") as caught:
            submit(agent, "hello")
        assert caught.value.field == "agent"

    assert not (Run.objects.exists() or Session.objects.exists())
    assert hints == []


def test_input_over_the_limit_is_refused_and_at_the_limit_taken(hints):
    text = "é" * ((conf.MAX_INPUT_BYTES - 2) // 2)

    submit("test/code", text)
    with pytest.raises(InputTooLargeError):
        submit("test/code", text + "é")

    assert Run.objects.count() == 1


def test_input_may_be_text_blocks_or_a_message(hints, agent):
    message = Message(
        target=agent.id, payload=ChatPayload(message=ChatMessage.of("user", "hi")), metadata={"from": "a test"}
    )

    runs = [submit(agent, given) for given in ("hi", [{"type": "text", "text": "hi"}], [TextBlock(text="hi")], message)]
    run_until_idle()

    assert [Run.objects.get(id=run.id).output for run in runs] == ["HI"] * 4
    assert InboxMessage.objects.get(run=runs[3]).body["metadata"] == {"from": "a test"}


def test_limits_are_kept_with_the_run(hints):
    deadline = datetime(2040, 1, 1, tzinfo=UTC)

    run = submit("test/code", "hello", budget=ExecutionBudget(max_turns=3), deadline=deadline, tenant="acme")

    run.refresh_from_db()
    assert (run.budget, run.deadline, run.tenant) == ({"max_turns": 3}, deadline, "acme")
    assert run.session.tenant == "acme"
    assert submit("test/code", "hello", deadline=datetime(2040, 1, 1)).deadline == deadline, "the site's zone"
    for priority in Priority:
        assert submit("test/code", "hello", priority=priority.name.lower()).priority == priority.value
