"""`@tool(visible="staff")`: the owner of a run reads neither the arguments nor the result, on any surface."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import AsyncClient
from django.urls import reverse
from django.utils import timezone

from project.process import wait_until
from ravi_django import answer, register, tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.kernel import (
    HumanInput,
    InvalidInputError,
    PauseForInputResult,
    RunContext,
    ToolUseBlock,
    TransientError,
)
from ravi_django.middleware import AuditLog
from ravi_django.models import HumanRequest, OutboxEvent, Run, StreamFrame
from ravi_django.routing import websocket_urlpatterns
from ravi_django.signals import request_opened
from ravi_django.site_checks import check_hidden_tools
from ravi_django.testing import ScriptedModel, run_until_idle
from ravi_django.tools import ReadResultTool
from tests.acceptance.api.api_support import RUNSERVER, client_of, error_of
from tests.support import world
from tests.support.inbox import logged_in
from tests.support.patience import BOUND_S
from tests.support.runs import auntil, code, make_run
from tests.support.world import Credential, OpenStream, forget_readers, get_buffer, streams_lost, submit

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = "react/crm-desk"
ARGUMENT, RESULT, CHANGED = "ACCT-777", "MARGIN-042", "ACCT-888"
SECRETS = (ARGUMENT, RESULT, CHANGED)
AS_IT_CAME = {"family": "any", "arguments": f'{{"account": "{ARGUMENT}"}}'}
LOOK_UP = ToolUseBlock(tool_name="crm", arguments={"account": ARGUMENT}, call_id="c1", origin=AS_IT_CAME)
JSON = {"Accept": "application/json"}


@tool(visible="staff", risk="high", effect="idempotent", approvers="staff")
def crm(account: str) -> str:
    """Look a customer up."""
    return f"{RESULT} of {account}"


@pytest.fixture
def owner() -> Any:
    return get_user_model().objects.create_user("ann")


@pytest.fixture
def boss() -> Any:
    return get_user_model().objects.create_superuser("boss")


def started(owner: Any, tools: Any = crm, *script: Any) -> Run:
    """A run that is driven until it waits or has ended."""
    tools = tools if isinstance(tools, list) else [tools]
    model = ScriptedModel([*(script or (LOOK_UP,)), "All fine!"])
    register(ReActAgent("crm-desk", model=model, tools=tools, context=ContextConfig(DjangoHistoryProvider())))
    run = submit(ADDRESS, "Am I a good customer?", user=owner)
    run_until_idle()
    return run


def ended(run: Run, boss: Any) -> Run:
    """Staff change the arguments, and the run goes on to its end."""
    answer(HumanRequest.objects.get(run=run).id, "edit", arguments={"account": CHANGED}, by=boss)
    run_until_idle()
    assert wait_until(lambda: world.events_page(run.id)[1], BOUND_S)
    run.refresh_from_db()
    assert (run.status, run.output) == ("completed", "All fine!")
    return run


def read(run: Run, user: Any) -> dict[str, Any]:
    """What `user` reads of it, by surface."""
    return over_rest(run, user) | pages(run, user)


def over_rest(run: Run, user: Any) -> dict[str, Any]:
    client = client_of(user)
    paths = ["journal/", "tree/", "", "events/"]
    found: dict[str, Any] = {
        path: client.get(f"/ravi/runs/{run.id}/{path}", headers=JSON).json() for path in paths if path
    }
    found["messages"] = client.get(f"/ravi/sessions/{run.session_id}/messages/").json()
    found["requests"] = client.get("/ravi/requests/").json()
    for request in HumanRequest.objects.filter(run=run):
        found[f"request {request.kind}"] = client.get(f"/ravi/requests/{request.id}/").json()
    return found


def pages(run: Run, user: Any) -> dict[str, str]:
    """What `user` reads of it on its page, in each entry's detail there, in the page's export, the chat and the
    admin."""
    client, page = logged_in(user), f"/ravi/ui/runs/{run.id}/"
    chat, inbox = f"/ravi/ui/chat/{run.session_id}/", reverse("admin:ravi_humanrequest_changelist")
    found = {path: b"".join(client.get(path)).decode() for path in (page, f"{page}export/", chat, inbox)}
    for seq in run.journal.values_list("seq", flat=True):
        response = client.get(page, {"entry": f"{run.id}.{seq}", "part": "detail"})
        assert response.status_code == 200
        found[f"entry {seq}"] = response.content.decode()
    return found


@async_to_sync
async def frames_of_socket(path: str, user: Any, last: str) -> list[Any]:
    """Up to the first frame of the type `last`."""
    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
    scope = {"type": "websocket", "path": path, "query_string": b"", "headers": headers, "user": user}
    socket = ApplicationCommunicator(URLRouter(websocket_urlpatterns), scope)
    await socket.send_input({"type": "websocket.connect"})
    found: list[Any] = []
    while not found or found[-1]["type"] != last:
        sent = await socket.receive_output(timeout=BOUND_S)
        if "text" in sent:
            found.append(json.loads(sent["text"]))
    await socket.send_input({"type": "websocket.disconnect", "code": 1000})
    await socket.wait(timeout=BOUND_S)
    return found


@async_to_sync
async def event_stream(run: Run, user: Any) -> str:
    client = AsyncClient()
    await client.aforce_login(user)
    response = await client.get(f"/ravi/runs/{run.id}/events/")
    return "".join([part.decode() async for part in response.streaming_content])


@async_to_sync
async def progress(run: Run, user: Any) -> list[Any]:
    client = AsyncClient()
    await client.aforce_login(user)
    response = await client.get(f"/ravi/topics/agent.progress/{run.id}/events/", headers={"Accept": "application/json"})
    return list(response.json()["results"])


def streams(run: Run, user: Any) -> dict[str, Any]:
    """What `user` reads of an ended run over its streams."""
    found = {"run socket": frames_of_socket(f"/ws/ravi/runs/{run.id}/", user, "stream.done")}
    found["session socket"] = frames_of_socket(f"/ws/ravi/sessions/{run.session_id}/", user, "stream.done")
    found["sse"], found["topic"] = event_stream(run, user), progress(run, user)
    wsgi = client_of(user).get(f"/ravi/runs/{run.id}/events/", headers={"Accept": "text/event-stream"}, **RUNSERVER)
    found["runserver"] = b"".join(wsgi.streaming_content).decode()
    forget_readers(close=True)
    return found


def leaks(found: dict[str, Any]) -> list[str]:
    return [f"{secret} in {name}" for name, shown in found.items() for secret in SECRETS if secret in json.dumps(shown)]


def test_an_owner_reads_neither_arguments_nor_result_on_any_surface(owner: Any, boss: Any) -> None:
    run = started(owner)
    waiting = read(run, owner) | {"inbox": frames_of_socket("/ws/ravi/requests/", owner, "request")}
    ended(run, boss)
    found = read(run, owner)

    assert leaks(waiting) == leaks(found | streams(run, owner)) == []
    (request,) = waiting["requests"]["results"]
    assert (request["arguments"], request["hidden"], request["tool"]) == (None, True, "crm")
    rows = {(row["kind"], row["phase"]): row for row in found["journal/"]["results"] if row.get("hidden")}
    assert {("tool.call", "result"), ("approval", "result"), ("request.opened", "result")} <= rows.keys()
    call = rows["tool.call", "result"]
    assert (call["result"], call["request"]["arguments"], call["name"]) == (None, None, "crm")
    (asked,) = rows["llm.call", "result"]["result"]["content"]
    assert asked == {"type": "tool_use", "tool_name": "crm", "arguments": None, "call_id": "c1", "hidden": True}
    frames = [frame for frame in found["events/"]["results"] if frame.get("hidden")]
    assert {frame["type"] for frame in frames} == {"progress", "completion", "request"}
    told = [frame["content"] for frame in frames if frame["type"] == "progress"]
    assert [content.get("arguments") or content.get("text") for content in told] == [None, None]
    blocks = [block for turn in found["messages"]["results"] for block in turn["content"] if block.get("hidden")]
    assert [(block["type"], block.get("arguments"), block.get("content")) for block in blocks] == [
        ("tool_use", None, None),
        ("tool_result", None, None),
    ]


def test_staff_read_all_of_it_also_of_their_own_runs(owner: Any, boss: Any) -> None:
    owner.is_staff = True
    owner.save()
    run = ended(started(owner), boss)

    for reader in (owner, boss):
        found = read(run, reader) | streams(run, reader)
        assert any(RESULT in shown for name, shown in found.items() if name.startswith("entry"))
        for name in (
            "journal/",
            "messages",
            "request approval",
            f"/ravi/ui/runs/{run.id}/export/",
            *streams(run, reader),
        ):
            assert any(secret in json.dumps(found[name]) for secret in SECRETS), (reader, name)
        assert RESULT in json.dumps(found["journal/"])
        assert any(row.get("hidden") for row in found["journal/"]["results"])


def test_it_stays_hidden_where_the_tool_is_unknown_and_in_a_fork(owner: Any, boss: Any) -> None:
    run = ended(started(owner), boss)
    register(ReActAgent("crm-desk", model=ScriptedModel(["Well."])), replace=True)

    forked = client_of(owner).post(f"/ravi/runs/{run.id}/fork/", {"after_seq": 8}, format="json").json()

    assert leaks(read(run, owner)) == leaks(read(Run.objects.get(id=forked["id"]), owner)) == []


def test_it_is_hidden_in_the_snapshot_of_a_gap(owner: Any, boss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(started(owner), boss)
    gap = {"type": "stream.gap", "seq": 1, "from": 1, "to": 1, "snapshot": world.snapshot(str(run.id))}
    monkeypatch.setattr(get_buffer(), "read", lambda *_: [gap])

    assert leaks({"events": world.events_page(run.id)}) == []
    assert leaks({"events": world.events_page(run.id, whole=True)})


def test_a_failure_and_a_long_result_are_hidden_too(owner: Any, settings: Any) -> None:
    @tool(visible="staff", max_result_bytes=20)
    def ledger(account: str) -> str:
        """Read the ledger."""
        if account == "gone":
            raise ValueError(f"no such account, only {ARGUMENT}")
        return f"{'.' * 30}{RESULT}"

    model_calls = [
        ToolUseBlock(tool_name="ledger", arguments={"account": "gone"}, call_id="c1"),
        ToolUseBlock(tool_name="ledger", arguments={"account": "x"}, call_id="c2"),
    ]
    run = started(owner, [ledger, ReadResultTool()], *model_calls)
    cut = run.journal.filter(kind="tool.call").last()
    reader = ToolUseBlock(tool_name="read_result", arguments={"id": f"{run.id}:0:{cut.path}"}, call_id="c3")

    later = started(owner, [ledger, ReadResultTool()], reader)

    assert RESULT in str(later.journal.get(kind="tool.call").result)
    assert leaks(read(run, owner) | {f"later {name}": shown for name, shown in read(later, owner).items()}) == []


def test_what_a_hidden_tool_raises_is_no_error_of_the_run(owner: Any) -> None:
    raised: list[Exception] = [TransientError(f"{RESULT} is away", retry_after=0.01)]

    @tool(visible="staff")
    def ledger() -> str:
        """Read the ledger."""
        if raised:
            raise raised.pop()
        return "read"

    run = started(owner, ledger, ToolUseBlock(tool_name="ledger", arguments={}, call_id="c1"))
    assert wait_until(lambda: run_until_idle() >= 0 and Run.objects.get(id=run.id).is_terminal, BOUND_S)

    assert run.journal.filter(kind="run.retried").exists()
    assert leaks(read(run, owner)) == []


@pytest.mark.parametrize("outcome", ["happened", "fail"])
def test_an_uncertain_call_is_hidden_and_staff_are_asked(owner: Any, boss: Any, settings: Any, outcome: str) -> None:
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"uncertain": "owner"}}

    @tool(visible="staff", risk="high", effect="at_most_once", approval="never")
    def pay(account: str) -> str:
        """Pay."""
        raise RuntimeError(f"the line to {account} broke")

    run = started(owner, pay, ToolUseBlock(tool_name="pay", arguments={"account": ARGUMENT}, call_id="c1"))
    request = HumanRequest.objects.get(run=run)
    waiting = read(run, owner)
    told = {"result": RESULT} if outcome == "happened" else {}
    world.answer(request.id, "resolve", outcome=outcome, by=boss, **told)
    run_until_idle()
    run.refresh_from_db()
    opened = HumanRequest.objects.filter(run=run).values_list("status", flat=True)

    assert (request.kind, request.to, list(opened)) == ("uncertain", "staff", ["answered"])
    assert run.status == ("completed" if outcome == "happened" else "failed")
    assert leaks(waiting) == leaks(read(run, owner)) == []


def test_an_approval_that_a_retry_opens_again_is_hidden(owner: Any, boss: Any) -> None:
    opened: list[Any] = []

    def told(sender: Any, **more: Any) -> None:
        opened.append(sender)

    @tool
    async def hold() -> str:
        """Take until the request is there."""
        await auntil(lambda: opened)
        return "held"

    async def story(ctx: Any, inbox: Any) -> None:
        approval = asyncio.ensure_future(ctx.approve("crm", {"account": ARGUMENT}, to="staff"))
        await ctx.tool("hold")
        approval.cancel()
        raise ValueError("not yet")

    request_opened.connect(told)
    code(story, tools=[crm, hold])
    run = make_run(owner=owner)
    run_until_idle()

    assert client_of(owner).post(f"/ravi/runs/{run.id}/retry/", {}, format="json").status_code == 202
    assert ARGUMENT in str(run.journal.get(kind="run.retried").result)
    assert leaks(read(run, owner)) == []


def test_a_tool_asks_the_owner_openly_and_others_behind_their_back(owner: Any) -> None:
    @tool(visible="staff")
    def check(ctx: RunContext, account: str, told: HumanInput | None = None) -> str | PauseForInputResult:
        """Ask."""
        to = "owner" if account == "own" else "staff"
        return f"{RESULT}" if told else PauseForInputResult(f"Is it {account}?", context=ARGUMENT, to=to)

    calls = [ToolUseBlock(tool_name="check", arguments={"account": name}, call_id=name) for name in ("own", ARGUMENT)]
    run = started(owner, check, calls)

    shown = {row["to"]: row for row in client_of(owner).get("/ravi/requests/").json()["results"]}

    assert shown["owner"]["text"] == "Is it own?" and shown["owner"]["may_answer"]
    assert leaks({"staff": shown["staff"]}) == [] and shown["staff"]["hidden"]
    assert "Is it own?" in json.dumps(client_of(owner).get(f"/ravi/runs/{run.id}/events/", headers=JSON).json())


def test_an_approver_who_is_no_staff_reads_what_they_decide_on(owner: Any, boss: Any) -> None:
    clerk = get_user_model().objects.create_user("clerk")
    run = started(owner)
    request = HumanRequest.objects.get(run=run)
    HumanRequest.objects.filter(pk=request.pk).update(to="user:clerk")

    assert client_of(clerk).get(f"/ravi/requests/{request.id}/").json()["arguments"] == {"account": ARGUMENT}


def test_an_owner_is_not_made_to_confirm_what_is_hidden(owner: Any, boss: Any, settings: Any) -> None:
    with pytest.raises(ValueError, match=r"crm: .*approvers"):
        tool(visible="staff", approvers=[("staff", 60), "owner"])(crm.function)
    with pytest.raises(ValueError, match="visible must be 'owner' or 'staff', not 'nobody'"):
        tool(visible="nobody")(crm.function)
    for approvers in ({"crm": "owner"}, {"high": "owner"}):
        with pytest.raises(InvalidInputError, match=r"crm.*visible"):
            ReActAgent("desk", model=ScriptedModel(["ok"]), tools=[crm], approvers=approvers)

    started(owner)
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"approval": "owner"}}
    bare = tool(visible="staff", risk="high")(crm.function)
    run = started(owner, bare)
    (fault,) = check_hidden_tools()
    assert fault.id == "ravi.E017" and "crm" in fault.msg and "ADDRESSEES" in fault.hint
    request = HumanRequest.objects.get(run=run)
    assert request.to == "staff"  # it runs nevertheless, and the owner is not asked
    refused = client_of(boss).post(f"/ravi/requests/{request.id}/reassign/", {"to": "owner"}, format="json")
    assert (refused.status_code, error_of(refused)["field"]) == (400, "to")


def audited() -> AuditLog:
    """RAVI["MIDDLEWARE"] of the test."""
    return AuditLog(arguments=True)


@pytest.mark.parametrize("inline", [64 * 1024, 40])
def test_an_export_hides_it_from_the_owner(owner: Any, boss: Any, settings: Any, inline: int, monkeypatch: Any) -> None:
    more = {"EVENT_BUS": "memory", "MIDDLEWARE": [f"{__name__}.audited"]}
    world.patch(monkeypatch, "INLINE_BYTES", inline)
    settings.RAVI = {**settings.RAVI, **more}
    cut = tool(visible="staff", risk="high", approvers="staff", max_result_bytes=5)(crm.function)
    run = ended(started(owner, cut), boss)
    told = world.of_request(HumanRequest.objects.get(run=run), "opened", run)
    later = timezone.now() + timedelta(hours=1)  # a relay of the run's own events may still be at work
    waiting = [OutboxEvent(topic=world.OUTBOX_TOPIC, body=world.outbox_body(event), again_at=later) for event in told]
    OutboxEvent.objects.bulk_create(waiting)
    frames = world.events_page(run.id, whole=True)[0]  # as a site without Redis keeps them
    StreamFrame.objects.bulk_create(StreamFrame(tree=run, seq=frame["seq"], body=frame) for frame in frames)

    def export() -> list[Any]:
        out = StringIO()
        call_command("ravi_export", owner.username, stdout=out)
        return list(json.loads(out.getvalue()))

    found = export()

    assert leaks({f"{row['model']} {number}": row for number, row in enumerate(found)}) == []
    rows = [(row["model"], {**(row["fields"].get("body") or {}), **row["fields"]}) for row in found]
    assert {model for model, fields in rows if fields.get("hidden")} == {
        *("ravi.journalentry", "ravi.turn", "ravi.humanrequest", "ravi.auditrecord", "ravi.outboxevent"),
        *("ravi.streamframe", "ravi.blob"),
    }
    assert "All fine!" in json.dumps(found)
    owner.is_staff = True
    owner.save()
    assert {secret for secret in SECRETS if secret in json.dumps(export())} == set(SECRETS)


def test_the_policy_decides_on_the_journal(owner: Any, boss: Any, settings: Any) -> None:
    run = ended(started(owner), boss)
    settings.RAVI = {**settings.RAVI, "JOURNAL_FOR_OWNERS": False}

    refused = client_of(owner).get(f"/ravi/runs/{run.id}/journal/")

    assert (refused.status_code, error_of(refused)["code"]) == (403, "forbidden")
    assert client_of(boss).get(f"/ravi/runs/{run.id}/journal/").status_code == 200
    assert client_of(owner).get(f"/ravi/runs/{run.id}/events/", headers=JSON).status_code == 200


def test_a_stream_ends_with_the_rights_of_staff_that_opened_it(owner: Any) -> None:
    run = started(owner)
    open_stream = OpenStream(owner.pk, Credential(), "", run, whole=True)
    plain = OpenStream(owner.pk, Credential(), "", run)

    assert list(streams_lost([open_stream, plain])) == [open_stream]


def test_what_an_agents_own_code_records_stays_as_it_is(owner: Any) -> None:
    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.log("note", {"hidden": True, "text": "seen"})

    code(story)
    run = make_run(owner=owner)
    run_until_idle()

    (row,) = [row for row in read(run, owner)["journal/"]["results"] if row["kind"] == "log"]
    assert row["result"] == {"hidden": True, "text": "seen"} and "hidden" not in row


def test_the_tool_of_the_docs_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(crm=None))
    page = (Path(__file__).resolve().parents[3] / "docs/howto/hidden-results.md").read_text()
    space: dict[str, Any] = {}
    exec(page.partition("# shop/customers.py\n")[2].partition("```")[0], space)

    assert space["customer"].visible == "staff"
