"""UserProxyAgent on durable rows: answered by a person or by a signal, once, across crashes, in any order."""

import asyncio
import json
from threading import Barrier

import pytest

from ravi_django import register, signal
from ravi_django.agents import UserProxyAgent
from ravi_django.kernel import AgentId, ConflictError, ControlPayload, InvalidInputError, Message
from ravi_django.models import AuditRecord, HumanRequest, InboxMessage, Run, Signal, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import (
    around_append,
    asked,
    code,
    drive,
    every_death,
    in_background,
    make_run,
    message,
    on_postgresql,
)

pytestmark = pytest.mark.django_db(transaction=True)

BOSS = "user_proxy/boss"


def boss(**options):
    return register(UserProxyAgent("boss", **options))


def proxied():
    """A run of the boss, as it waits for the answer, and the signal that it waits for."""
    run = drive(make_run(BOSS, text="Send it?"))
    return run, asked(run).signal


def test_a_question_is_only_rows_until_a_person_answers_it(ann):
    boss()
    run = drive(make_run(BOSS, text="Send it?", owner=ann))
    request = asked(run)
    ((_, message),) = world.inbox_after(run, 0)
    cid = message["correlation_id"] or message["id"]
    named = f"human_reply:{cid}"
    assert (request.kind, request.text, request.to, request.signal) == ("question", "Send it?", "owner", named)
    logged = [row.result for row in journal_of(run) if row.name == "hitl.question"]
    assert logged == [{"correlation_id": cid, "text": "Send it?"}]

    world.answer(request.id, text="Yes, today.", by=ann)
    run = drive(run)

    assert (run.status, run.output) == (Status.COMPLETED, "Yes, today.")
    (sent,) = Signal.objects.filter(run=run)
    assert (sent.name, sent.payload) == (request.signal, {"action": "answer", "text": "Yes, today.", "by": "ann"})
    assert not Signal.objects.filter(run=run, consumed_at=None).exists()


@pytest.mark.parametrize("payload", [{"ok": True, "amount": 3}, False])
def test_a_signal_is_relayed_as_it_is_and_closes_the_question(payload):
    async def story(ctx, inbox):
        told = await ctx.ask(AgentId("user_proxy", "boss"), "Send it?")
        return {"told": told.result}

    boss()
    code(story)
    run = drive(make_run())
    child = drive(Run.objects.get(parent=run))
    request = asked(child)

    signal(child, request.signal, payload)
    child = drive(child)

    assert (child.status, json.loads(drive(run).output)) == (Status.COMPLETED, {"told": payload})
    request.refresh_from_db()
    assert (request.status, request.answer) == ("cancelled", None)
    assert not Signal.objects.filter(consumed_at=None).exists()
    frames = [frame for frame in world.events_page(run.id)[0] if frame["type"].startswith("request")]
    assert [(frame["type"], frame["id"]) for frame in frames] == [
        ("request", str(request.id)),
        ("request.closed", str(request.id)),
    ]
    kept = AuditRecord.objects.get(event="request", name="cancelled")
    assert kept.detail["reason"] == f"answered by the signal {request.signal}"
    with pytest.raises(ConflictError, match="already cancelled"):
        world.answer(request.id, text="no")


def test_a_signal_between_the_look_and_the_expiry_counts(clock):
    """The worker has read that there is nothing; by the time it closes the question there is a signal."""
    boss(answer_within=60)
    run = drive(make_run(BOSS))
    name = HumanRequest.objects.get(run=run).signal
    clock.advance(59)

    def late(engine):
        call = engine.database.call

        async def signalling(function, *args, **kwargs):
            found = await call(function, *args, **kwargs)
            if function is world.load_with_wake_state:
                await asyncio.to_thread(in_background(signal, run.id, name, "Yes.").result, 10)
                clock.advance(2)
            return found

        engine.database.call = signalling

    Run.objects.filter(id=run.id).update(wake_at=clock.now)

    run = drive(run, setup=late)

    assert (run.output, HumanRequest.objects.get(run=run).status) == ("Yes.", "cancelled")


@pytest.mark.parametrize("how", ["answer", "signal"])
def test_a_worker_that_dies_asks_once_and_relays_the_reply_once(clock, how):
    """Over the question, or over the reply, which may come before the next worker does."""
    boss()

    def reply():
        for request in HumanRequest.objects.filter(status="pending"):
            if how == "answer":
                world.answer(request.id, text="Yes.")
            elif not Signal.objects.exists():
                signal(request.run, request.signal, "Yes.")

    def story(drive):
        run = drive(make_run(BOSS), meanwhile=reply)
        reply()
        return run if run.is_terminal else drive(run)

    for run, _ in every_death(clock, story):
        request = HumanRequest.objects.get(run=run)
        assert (run.status, run.output) == (Status.COMPLETED, "Yes.")
        assert request.status == ("answered" if how == "answer" else "cancelled")
        assert [row.name for row in journal_of(run)].count("hitl.question") == 1
        assert [row.kind for row in journal_of(run) if row.phase == "result"].count("ask_human") == 1
        assert not Signal.objects.filter(consumed_at=None).exists()


def test_of_a_signal_and_an_answer_the_first_counts_and_a_person_is_told_so():
    boss()
    run, name = proxied()
    request = asked(run)

    signal(run, name, "By the program.")
    with pytest.raises(ConflictError, match="has already answered this request"):
        world.answer(request.id, text="By a person.")

    assert drive(run).output == "By the program."
    request.refresh_from_db()
    assert (request.status, request.answer) == ("cancelled", None)
    run, name = proxied()
    world.answer(asked(run).id, text="By a person.")
    signal(run, name, "By the program.")
    assert drive(run).output == "By a person."


def test_an_answer_that_was_accepted_counts_whatever_the_worker_has_read(clock):
    """The worker has taken the signal; before it relays it, an answer comes that knew nothing of the signal."""
    boss()
    run, name = proxied()
    request = asked(run)
    signal(run, name, "By the program.")

    run = drive(run, setup=accepting(request))

    assert (run.status, run.output) == (Status.COMPLETED, "By a person.")
    request.refresh_from_db()
    assert request.status == "answered"


def test_a_signal_that_was_not_relayed_is_there_for_another_question_by_its_name(clock):
    async def story(ctx, inbox):
        told = await asyncio.gather(*(ctx.ask_human(text, signal="human_reply:x") for text in ("First?", "Second?")))
        return [one.get("payload", one["text"]) for one in told]

    code(story)
    run = drive(make_run())
    first = HumanRequest.objects.filter(run=run).earliest("id")
    signal(run, "human_reply:x", "By the program.")

    run = drive(run, setup=accepting(first))
    run = drive(run) if run.status == Status.PENDING else run

    assert (run.status, json.loads(run.output or "null")) == (Status.COMPLETED, ["By a person.", "By the program."])


def accepting(request):
    """The worker's first append is one too late: an answer is accepted right before it."""
    done = []

    async def answered(engine, entries):
        if not done:
            done.append(await asyncio.to_thread(in_background(_accept, request.id).result, 10))

    return around_append(before=answered)


def _accept(request_id):
    """As of an answer whose transaction could not see the signal's yet."""
    Signal.objects.filter(consumed_at=None).update(name="not seen")
    world.answer(request_id, text="By a person.")
    Signal.objects.filter(name="not seen").update(name=HumanRequest.objects.get(id=request_id).signal)


@on_postgresql
@pytest.mark.parametrize("attempt", range(2))
def test_of_a_person_and_a_program_at_the_same_moment_one_is_relayed(attempt):
    boss()
    run, name = proxied()
    request = asked(run)
    together = Barrier(2)

    def at_once(function, *args, **options):
        together.wait(seconds(10))
        try:
            return function(*args, **options) or True
        except ConflictError:
            return False

    by_person = in_background(lambda: at_once(world.answer, request.id, text="By a person."))
    by_program = in_background(lambda: at_once(signal, run.id, name, "By the program."))
    accepted = by_person.result(BOUND_S)
    assert by_program.result(BOUND_S)

    run = drive(run)

    request.refresh_from_db()
    assert (run.status, run.output) == (Status.COMPLETED, "By a person." if accepted else "By the program.")
    assert request.status == ("answered" if accepted else "cancelled")


def test_a_question_of_long_ago_is_not_answered_by_its_successors_signal():
    """A message of the same conversation asks by the same name: what came late for the first is not for the second."""
    boss()
    run, name = proxied()
    world.answer(asked(run).id, text="First.")
    signal(run, name, "late, for the first")
    again = {**message("And now?", BOSS), "correlation_id": name.removeprefix("human_reply:")}
    InboxMessage.objects.create(run=run, message_id=again["id"], body=again)

    run = drive(run)

    request = asked(run)
    assert (request.text, request.signal) == ("And now?", name)
    world.answer(request.id, text="Second.")
    assert drive(run).output == "Second."


def test_a_signal_of_the_sites_own_code_is_kept_for_the_question(ann):
    boss(to="user:bob")
    run = make_run(BOSS, owner=ann)
    ((_, message),) = world.inbox_after(run, 0)
    name = f"human_reply:{message['correlation_id'] or message['id']}"

    signal(run, name, "Known already.")

    assert drive(run).output == "Known already."


def test_no_agent_says_it_in_a_persons_place():
    """A model that leads a team could else answer the question that its own team has asked."""

    async def story(ctx, inbox):
        handle = await ctx.spawn(AgentId("user_proxy", "boss"), "Send it?")
        for name in ("human_reply:x", "hitl:x"):
            control = Message(target=handle.agent_id, payload=ControlPayload(signal=name, data={"text": "yes"}))
            try:
                await ctx.send(handle, control)
            except InvalidInputError as error:
                refused.append(error.field)
        return "done"

    refused = []
    boss()
    code(story)

    run = drive(make_run())

    assert (run.status, refused) == (Status.COMPLETED, ["signal", "signal"])
    assert not Signal.objects.exists()
