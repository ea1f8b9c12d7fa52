"""AuditLog: one record of each thing, whatever crashes, and nothing in it that is nobody's business."""

import json
import logging

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import DatabaseError

from ravi_django import tool
from ravi_django.kernel import (
    ChatMessage,
    ChatMiddleware,
    FunctionMiddleware,
    GuardrailError,
    ModelResponse,
    TextBlock,
    ToolExecutionResult,
    ToolRefused,
    TransientError,
    Usage,
)
from ravi_django.middleware import AuditLog
from ravi_django.models import AuditRecord, JournalEntry, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.runs import asked, code, drive, make_run, take_over
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)

SAID = ModelResponse.of([TextBlock(text="hi")], usage=Usage(input_tokens=5, output_tokens=2), cost=0.25, model="gpt-9")


def audited(story, audit=None, *inner, **options):
    agent = code(story, **options)
    agent.middleware = [audit or AuditLog(), *inner]
    return agent


def records(event=None):
    rows = AuditRecord.objects.order_by("id")
    return [
        (row.event, row.detail.get("step") or row.detail.get("outcome", "attempted"))
        for row in (rows.filter(event=event) if event else rows)
    ]


async def asks(ctx, inbox):
    return (await ctx.llm([ChatMessage.of("user", "hello")])).text


def sender(effect, ran):
    @tool(effect=effect)
    def send(to: str, api_key: str = "") -> str:
        ran.append(to)
        if effect == "transactional":
            Group.objects.create(name=to)
        return "sent"

    return send


def test_a_run_its_model_calls_and_its_tools_are_on_record(ran, caplog):
    caplog.set_level(logging.INFO, "ravi.audit")
    ann = get_user_model().objects.create_user("ann")

    async def story(ctx, inbox):
        await ctx.llm([ChatMessage.of("user", "hello")])
        await ctx.tool("send", to="ACME", api_key="sk-zanzibar")
        return "done"

    audited(story, model=ScriptedModel([SAID]), tools=[sender("idempotent", ran)])
    run = drive(make_run(owner=ann, tenant="acme"))
    assert records() == [("run", "started"), ("model", "ok"), ("tool", "ok"), ("run", "ended")]
    started, model, used, ended = AuditRecord.objects.order_by("id")
    for record in (started, model, used, ended):
        assert (record.owner, record.tenant, record.run_id, record.session_id) == (ann, "acme", run.id, run.session_id)
        assert record.agent == "test/code"
    assert (model.name, used.name) == ("scripted", "send")
    detail = model.detail
    assert (detail["model"], detail["input_tokens"], detail["output_tokens"], detail["cost"]) == ("gpt-9", 5, 2, 0.25)
    assert detail["duration_s"] >= 0
    assert set(used.detail) == {"path", "risk", "arguments_sha256", "outcome", "duration_s"}
    assert ended.detail["outcome"] == "ok"
    lines = [entry.getMessage() for entry in caplog.records if entry.name == "ravi.audit"]
    assert lines[2] == f"tool send {run.id}: ok"
    assert "sk-zanzibar" not in caplog.text


@pytest.mark.parametrize(
    ("effect", "dies"),
    [("idempotent", 1), ("at_most_once", 1), ("at_most_once", 2), ("transactional", 2), ("transactional", "end")],
)
def test_a_crash_and_another_worker_write_one_record_of_each(effect, dies, ran, clock):
    audited(calling("send", to="ACME"), tools=[sender(effect, ran)])
    run = take_over(clock, drive(make_run(), dies=dies))
    before = [] if effect == "idempotent" else [("tool", "attempted")]
    if effect == "at_most_once" and dies == 2:  # died between the tool and its row
        assert asked(run).tool == "send"
        assert records("tool") == [*before, ("tool", "ok")]
        assert records("run") == [("run", "started")]
        return
    assert records("tool") == [*before, ("tool", "ok")]
    assert records("run") == [("run", "started"), ("run", "ended")]
    assert run.status == Status.COMPLETED


def test_what_a_person_has_run_again_is_on_record_again(clock, ran):
    audited(calling("send", to="ACME"), tools=[sender("at_most_once", ran)])
    run = take_over(clock, drive(make_run(), dies=2))
    clock.advance(200)
    world.human_resolve(asked(run).id, "run_again")
    run = drive(run)
    assert run.output == "ok: sent"
    assert records("tool") == [("tool", "attempted"), ("tool", "ok")] * 2


def test_a_call_that_is_tried_again_has_one_outcome(clock):
    model = ScriptedModel([TransientError("busy")])
    audited(asks, model=model)
    run = drive(make_run())
    assert run.status == Status.PENDING
    model.script = [SAID]
    clock.advance(100)
    drive(run)
    assert records("model") == [("model", "ok")]


class Answer(ChatMiddleware):
    async def process(self, context, call_next):
        context.response = SAID


class Instead(FunctionMiddleware):
    async def process(self, context, call_next):
        context.result = ToolExecutionResult(content=[TextBlock(text="cached")])


class Refuse(FunctionMiddleware):
    async def process(self, context, call_next):
        raise GuardrailError("no")


@pytest.mark.parametrize(
    ("inner", "event", "outcome"),
    [(Answer(), "model", "middleware"), (Instead(), "tool", "middleware"), (Refuse(), "tool", "refused")],
)
def test_what_a_middleware_does_is_told_apart(inner, event, outcome, ran):
    async def story(ctx, inbox):
        await ctx.llm([ChatMessage.of("user", "hello")])
        await ctx.tool("send", to="ACME")

    audited(story, None, inner, model=ScriptedModel([SAID]), tools=[sender("idempotent", ran)])
    drive(make_run())
    assert (event, outcome) in records(event)


def test_errors_and_cancellations_are_on_record():
    @tool
    def look() -> str:
        raise ToolRefused("closed")

    async def story(ctx, inbox):
        await ctx.tool("look")
        await ctx.llm([ChatMessage.of("user", "hello")])

    async def cancelled(ctx, inbox):
        ctx.meta.cancellation.cancel("enough")
        ctx.check()

    audited(story, model=ScriptedModel([ValueError("bad")]), tools=[look])
    drive(make_run())
    found = {row.event: row.detail for row in AuditRecord.objects.order_by("id")}
    assert (found["tool"]["outcome"], found["tool"]["error"]) == ("error", "closed")
    assert (found["model"]["outcome"], found["model"]["error"]) == ("error", "ValueError: bad")
    assert (found["run"]["outcome"], found["run"]["error"]) == ("error", "ModelError: bad")
    audited(cancelled)
    run = drive(make_run())
    assert run.status == Status.CANCELLED
    assert AuditRecord.objects.get(run_id=run.id, detail__step="ended").detail["outcome"] == "cancelled"


def test_arguments_are_kept_only_when_asked_for_up_to_a_size_and_never_their_secrets():
    secrets = {
        "password": "p1", "Token": "p2", "client_secret": "p3", "api_key": "p4", "Authorization": "p5",
        "pin": "p6", "reset_token": "p7", "apiKey": "p8",
    }  # fmt: skip
    given = {**secrets, "deep": [{"passwd": "p9", "max_tokens": 5}], "to": "ACME"}
    audit = AuditLog(arguments=True, redact=["PIN"])
    found = audit.of_arguments(given)
    shown = dict.fromkeys(secrets, "[redacted]")
    assert found["arguments"] == {**shown, "deep": [{"passwd": "[redacted]", "max_tokens": 5}], "to": "ACME"}
    same = AuditLog(redact=["pin"]).of_arguments({**given, "password": "x"})
    assert found["arguments_sha256"] == same["arguments_sha256"]
    assert found["arguments_sha256"] != audit.of_arguments({**given, "to": "EMCA"})["arguments_sha256"]
    assert "arguments" not in AuditLog().of_arguments(given)
    assert len(json.dumps(audit.of_arguments({"text": "x" * 1_000_000, "\0": "\0"}))) < 6000


@pytest.mark.parametrize("required", [False, True])
def test_a_failing_record_of_what_has_happened_is_logged_and_undoes_nothing(monkeypatch, ran, caplog, required):
    audited(calling("send", to="ACME"), AuditLog(required=required), tools=[sender("at_most_once", ran)])
    write = world.audit_log_write_audit

    def fails(record):
        if not required or "outcome" in record.detail:
            raise DatabaseError("the disk is full")
        write(record)

    world.patch(monkeypatch, "audit_log_write_audit", fails)
    assert drive(make_run()).output == "ok: sent"
    assert records() == ([("run", "started"), ("tool", "attempted")] if required else [])
    assert JournalEntry.objects.filter(kind="tool.call", phase="result").exists()
    assert "no audit record of tool send" in caplog.text


def test_when_it_is_required_nothing_is_done_without_it(monkeypatch, ran):
    audited(calling("send", to="ACME"), AuditLog(required=True), tools=[sender("at_most_once", ran)])
    write = world.audit_log_write_audit

    def fails(record):
        if record.event == fails.at:
            raise DatabaseError("the disk is full")
        write(record)

    world.patch(monkeypatch, "audit_log_write_audit", fails)
    fails.at = "tool"
    run = drive(make_run())
    assert "send was not run: PermanentError: not done: the audit log cannot be written" in run.output
    fails.at = "run"
    assert drive(make_run()).error["type"] == "PermanentError"

    fails.at = "model"
    agent = audited(asks, AuditLog(required=True), model=ScriptedModel([SAID]))
    assert drive(make_run()).error["type"] == "PermanentError"
    assert (ran, agent.model.calls) == ([], [])


def test_a_run_that_is_retried_has_records_of_each_try(clock):
    replies = [KeyError("gone"), SAID]
    agent = audited(asks, model=ScriptedModel([lambda messages, options: replies.pop(0)]))
    run = drive(make_run())
    assert run.status == Status.FAILED
    first = records()
    world.store_retry(run.id)
    run = take_over(clock, drive(run, dies="end"))
    assert first == [("run", "started"), ("model", "error"), ("run", "ended")]
    assert run.status == Status.COMPLETED
    assert records() == [*first, ("run", "started"), ("model", "ok"), ("run", "ended")]
    assert len(agent.model.calls) == 2
