"""Where an exception was raised is on the row that exists anyway, and staff alone read it."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import httpx
import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from ravi_django import register, tool
from ravi_django.models import JournalEntry, OutboxEvent, Run
from tests.acceptance.access.test_hidden_tools import over_rest, read, streams
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS, MARKS = "test/code", ("raise_deep", "test_traces.py")


def raise_deep(depth: int) -> str:
    if depth:
        return raise_deep(depth - 1)
    raise KeyError("sk-secret-order")


@pytest.fixture
def failed(user: Any, server: str, key: str, worker: None, settings: Any) -> tuple[Run, dict[str, str]]:
    """A run whose tool and whose code have failed, and what the protocols answer of two more."""
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "memory", "MIDDLEWARE": ["ravi_django.middleware.AuditLog"]}

    @tool
    def look(part: str) -> str:
        """Look."""
        return raise_deep(50)

    async def story(ctx: Any, inbox: Any) -> str:
        await ctx.tool("look", part="a")
        return raise_deep(0)

    register(CodeAgent(story, tools=[look]), access="authenticated")
    ask = {"messages": [{"id": "m1", "role": "user", "content": "hi"}]}
    thread = {"threadId": "019b0000-0000-7000-8000-000000000000", "runId": "r1", "tools": [], "context": []}
    bodies = {f"agui/{ADDRESS}/": {**ask, **thread, "state": {}, "forwardedProps": {}}}
    bodies["v1/chat/completions"] = {"model": ADDRESS, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with httpx.Client(base_url=server, timeout=BOUND_S, trust_env=False) as web:
        key_of = {"Authorization": f"Bearer {key}"}
        told = {path: web.post(f"/ravi/{path}", json=body, headers=key_of).text for path, body in bodies.items()}
    assert all("KeyError" in text for text in told.values()), told
    return Run.objects.filter(owner=user).latest("id"), told


def test_a_trace_is_on_the_rows_of_the_tool_and_of_the_run(failed: tuple[Run, Any]) -> None:
    rows = {row.kind: row.trace for row in failed[0].journal.filter(trace__isnull=False)}

    assert rows.keys() == {"tool.call", "run.failed"}
    assert len(rows["tool.call"]) == 30 and {frozenset(frame) for trace in rows.values() for frame in trace} == {
        frozenset({"file", "line", "function"})
    }
    for trace in rows.values():
        frame = trace[-1]
        assert (frame["file"], frame["line"], frame["function"]) == (__file__[-200:], 28, "raise_deep")
    assert [frame["function"] for frame in rows["run.failed"]][-2:] == ["story", "raise_deep"]
    assert "sk-secret" not in json.dumps(rows)


def test_no_surface_of_the_owner_has_a_trace(failed: tuple[Run, dict[str, str]], user: Any) -> None:
    run, surfaces = failed
    out = StringIO()
    call_command("ravi_export", user.username, stdout=out)
    pages = [reverse("ravi:run-page", args=[run.id]) + f"?entry={run.id}.{row.seq}" for row in run.journal.all()]
    pages.append(reverse("ravi:run-export", args=[run.id]))
    client = Client()
    client.force_login(user)

    surfaces = surfaces | read(run, user) | streams(run, user) | {"export": out.getvalue()}
    surfaces["bus"] = list(OutboxEvent.objects.values_list("body", flat=True))
    surfaces |= {page: client.get(page).getvalue().decode() for page in pages}
    surfaces["run"] = client.get(f"/ravi/runs/{run.id}/", headers={"Accept": "application/json"}).json()

    assert "ravi.auditrecord" in surfaces["export"]
    assert [name for name, value in surfaces.items() if any(mark in json.dumps(value) for mark in MARKS)] == []


def test_staff_read_it_on_the_pages_and_not_over_rest(failed: tuple[Run, Any], root: Any) -> None:
    run, _ = failed
    row = JournalEntry.objects.get(run=run, kind="run.failed")
    client = Client()
    client.force_login(root)
    page = client.get(reverse("ravi:run-page", args=[run.id]), {"entry": f"{run.id}.{row.seq}"})

    assert f"{MARKS[1]}:28 {MARKS[0]}" in page.content.decode()
    assert MARKS[0] not in json.dumps(over_rest(run, root))
