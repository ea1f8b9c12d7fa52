"""Submitting writes rows in the caller's transaction, and is never undone by what comes after."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections, transaction

from ravi_django import asubmit, submit, tasks
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import (
    IdempotencyMismatchError,
    SessionNotFoundError,
)
from ravi_django.models import InboxMessage, Run, Session, Status
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S, seconds
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
def ann():
    return User.objects.create_user("ann")


@pytest.fixture
def bob():
    return User.objects.create_user("bob")


# ------------------------------------------------------------------------------------------- the transaction


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


def test_asubmit_does_the_same(hints):
    async def main():
        run = await asubmit("test/code", "hello")
        await sync_to_async(connections.close_all)()
        return run

    assert hints == [asyncio.run(main()).id]


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
    before = app.conf.broker_url, app.conf.broker_write_url
    url = f"redis://127.0.0.1:{free_port()}/0"
    app.conf.broker_url = app.conf.broker_write_url = url
    yield url
    app.conf.broker_url, app.conf.broker_write_url = before


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


# ---------------------------------------------------------------------------------------------- idempotency


def test_a_repeated_key_gives_the_first_run(hints, ann):
    first, created = submit_once("test/code", "hello", user=ann, idempotency_key="k")

    again, created_again = submit_once("test/code", "hello", user=ann, idempotency_key="k")

    assert (created, created_again, again.id) == (True, False, first.id)
    assert (Run.objects.count(), Session.objects.count(), len(hints)) == (1, 1, 1)


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
def test_of_eight_that_race_with_one_key_one_makes_the_run(hints):
    def post():
        run, created = submit_once("test/code", "hello", idempotency_key="k")
        return run.id, created

    answers = [posted.result(BOUND_S) for posted in [in_background(post) for _ in range(8)]]

    assert sorted(created for _, created in answers) == [False] * 7 + [True]
    assert {run_id for run_id, _ in answers} == {Run.objects.get().id}
    assert Session.objects.count() == 1
    assert len(hints) == 1


def test_a_race_inside_transactions_has_one_run_too(hints):
    def post():
        with transaction.atomic():
            return submit("test/code", "hello", idempotency_key="k").id

    assert len({posted.result(seconds(30)) for posted in [in_background(post) for _ in range(6)]}) == 1
    assert Run.objects.count() == 1


# ------------------------------------------------------------------------------------------------- sessions


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


def test_two_sessions_never_share_their_history(hints):
    talking(["A"] * 6)
    sessions = [submit("react/talker", f"{name}1").session for name in "xy"]
    run_until_idle()
    for name, session in zip("xy", sessions, strict=True):
        submit("react/talker", f"{name}2", session=session)
    run_until_idle()

    outputs = list(Run.objects.order_by("id").values_list("output", flat=True))

    assert outputs == ["A: x1", "A: y1", "A: x1 / A: x1 / x2", "A: y1 / A: y1 / y2"]
