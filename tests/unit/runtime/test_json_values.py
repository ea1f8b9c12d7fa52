"""JSON that no row can hold, or that is not read back from one."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection

from ravi_django import emit, signal, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.integrations.llm import LLMFactory
from ravi_django.kernel import AgentId, AgentProgress, AgentStep, InvalidInputError, Message, ProgressPayload
from ravi_django.models import Run, Status
from tests.support import world
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, idle, make_run, until
from tests.support.world import Runtime

pytestmark = pytest.mark.django_db(transaction=True)


async def waiting(ctx: Any, inbox: Any) -> Any:
    return await ctx.sleep_until_signal("go")


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


REFUSED = {
    "NUL": "a\0b", "NUL in a key": {"a": [{"\0": 1}]}, "half a pair": "\ud800", "half a key": {"a": {"\ud800": 1}},
    "infinity": {"a": [math.inf]}, "NaN": [math.nan], "digits": {"a": 10**4300}, "depth": nested(220),
}  # fmt: skip


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_the_doors_refuse_what_no_row_holds(value: Any) -> None:
    code(waiting)
    run = make_run()
    doors = {
        "input": lambda: submit(run.agent, [{"type": "data", "data": value}]),
        "metadata": lambda: submit(run.agent, "hi", metadata={"x": value}),
        "payload": lambda: signal(run, "x", {"x": value}),
        "data": lambda: emit("news/x", {"x": value}),
    }
    for field, send in doors.items():
        with pytest.raises(InvalidInputError) as caught:
            send()
        assert caught.value.field == field
    assert Run.objects.count() == 1


KEPT: list[Any] = []


@tool
def keep(data: dict[str, Any]) -> str:
    """Keep something."""
    KEPT.append(data)
    return "kept"


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"data": {"\\ud800": 1}}', [{"?": 1}]),  # replaced, as in a text
        ('{"data": {"a": [{"b\\u0000": "\\udfff"}]}}', [{"a": [{"b\ufffd": "?"}]}]),
        ('{"data": {"limit": 1e400}}', []),  # told, as for NaN
        ('{"data": {"limit": [-Infinity]}}', []),
        ('{"data": {"limit": ' + "9" * 4301 + "}}", []),
        ('{"data": {"limit": [' + "[]," * 100_001 + "0]}}", []),
    ],
    ids=["half a pair in a key", "both", "infinity", "a word", "digits", "elements"],
)
def test_a_models_arguments_are_stored_or_refused(arguments: str, kept: list[Any]) -> None:
    KEPT.clear()
    script = [Reply(tool_calls=(("keep", arguments),)), Reply(text="done")]
    with OpenAIServer(script) as server:
        model = LLMFactory("openai/gpt-x", "any-key", api_base=server.base_url).build()
        world.register(ReActAgent("keeper", model=model, tools=[keep]))
        run = drive(submit("react/keeper", "hi"))

    assert (run.status, run.output, KEPT) == (Status.COMPLETED, "done", kept)
    sent = server.requests[1].body["messages"]
    assert kept or "arguments" in sent[-1]["content"], sent[-1]


@pytest.mark.parametrize("depth", [210, 250])
@pytest.mark.parametrize(
    "write",
    [
        lambda ctx, value: ctx.log("x", value),
        lambda ctx, value: ctx.pin("x", lambda: value),
        lambda ctx, value: ctx.emit("news/x", {"x": value}),
        lambda ctx, value: ctx.tool("keep", data={"x": value}),
    ],
)
def test_a_value_that_is_nested_too_deep_is_refused_where_it_is_written(write: Any, depth: int) -> None:
    async def writing(ctx: Any, inbox: Any) -> str:
        with suppress(ValueError):
            await write(ctx, nested(depth))
        return str(await ctx.sleep_until_signal("go"))

    code(writing, tools=[keep])
    run = drive(make_run())
    if run.status == Status.SUSPENDED:
        signal(run, "go", "on")
        run = drive(run)
    assert run.output == "on" or (run.status == Status.FAILED and "deep" in run.error["message"]), run.error


def test_progress_that_is_nested_too_deep_does_not_spoil_its_stream() -> None:
    async def report(ctx: Any, inbox: Any) -> None:
        parent = ctx.meta.supervision.parent_id
        progress = AgentProgress(step=AgentStep.THINKING, content=nested(210))
        await ctx.send(parent, Message(target=parent, payload=ProgressPayload(progress=progress)))

    async def ask(ctx: Any, inbox: Any) -> str:
        return str((await ctx.ask(AgentId("test", "reporter"), "go")).kind)

    world.register(CodeAgent(report, key="reporter"))
    code(ask)
    run = idle(make_run())
    assert run.output == "target_failed"
    assert world.events_page(run.id)[0][-1]["type"] == "stream.done"


@pytest.mark.parametrize("where", ["ravi_inboxmessage.body", "ravi_run.metadata", "ravi_journalentry.result"])
def test_a_row_that_cannot_be_read_blocks_its_own_run(where: str) -> None:
    code(waiting)
    bad, *others = (make_run() for _ in range(3))
    if where.startswith("ravi_journal"):
        drive(bad)
    for run in (bad, *others):
        signal(run, "go", "on")
    table, column = where.split(".")
    with connection.cursor() as cursor:
        text = '{"x": ' + "9" * 5000 + "}"
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {OWN[table]} = %s", [text, bad.id.hex])
        assert cursor.rowcount

    async def until_done() -> list[Any]:
        async with Runtime() as runtime:
            return [await runtime.result(str(run.id), timeout=BOUND_S) for run in others]

    assert asyncio.run(until_done()) == ["on", "on"]
    until(lambda: Run.objects.filter(id=bad.id, status=Status.BLOCKED).exists())
    error = Run.objects.values_list("error", flat=True).get(id=bad.id)
    assert "a row of this run cannot be read" in error["message"]


OWN = {"ravi_inboxmessage": "run_id", "ravi_run": "id", "ravi_journalentry": "run_id"}
