"""An API key is in no table, log line, page, REST answer or frame, whatever the provider does with it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from ravi_django.calls.llm import LLMFactory
from ravi_django.models import Run
from tests.support import world
from tests.support.openai_server import OpenAIServer, Reply

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "Zq7-never-show-me-0123456789"  # of no known shape: only who has it can take it out
SECOND = "another/secret+header.value"


def everything_stored() -> str:
    """Every value of every table, as text."""
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
        found = []
        for table in tables:
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            for row in cursor.fetchall():
                found.append(" ".join(_text(value) for value in row))
    return "\n".join(found)


def _text(value: Any) -> str:
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | memoryview) else str(value)


def everything_shown(web: APIClient, browser: Any, run: Run) -> str:
    frames, _ = world.events_page(run.id)
    pages = [
        web.get(path, HTTP_ACCEPT="application/json").content.decode()
        for path in (
            "/ravi/agents/",
            "/ravi/agents/react/told/",
            f"/ravi/runs/{run.id}/",
            f"/ravi/runs/{run.id}/journal/",
            f"/ravi/runs/{run.id}/events/?after=0",
            f"/ravi/sessions/{run.session_id}/messages/",
        )
    ]
    admin = [
        browser.get(path).content.decode()
        for path in (
            f"/ravi/ui/runs/{run.id}/",
            "/admin/ravi/run/",
            "/admin/ravi/agent/",
            f"/admin/ravi/session/{run.session_id}/change/",
        )
    ]
    return "\n".join([json.dumps(frames), *pages, *admin])


@pytest.mark.full
@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="hello", headers={"x-echo": f"Bearer {KEY}"}),
        Reply(status=401, text=f"Incorrect API key provided: {KEY}.", headers={"x-echo": KEY}),
        Reply(status=400, text=f"bad header {SECOND} in a request of {KEY}", headers={"www-authenticate": KEY}),
        Reply(status=500, text=f"crashed while serving {KEY}", headers={"x-echo": KEY}),
    ],
    ids=["answered", "refused", "bad request", "broken"],
)
def test_the_key_is_nowhere(web, browser, agent, drive, settings, caplog, capfd, reply):
    settings.RAVI = {**settings.RAVI, "MAX_ATTEMPTS": 1}
    caplog.set_level(logging.DEBUG)
    with OpenAIServer(reply) as server:
        model = LLMFactory(
            "openai/gpt-4o", KEY, api_base=server.base_url, extra_headers={"X-Api-Key": SECOND, "X-Trace": "t1"}
        ).build()
        run_id = web.post("/ravi/runs/", {"agent": agent(model), "input": "hi"}, format="json").json()["id"]
        drive(run_id)

    (request,) = server.requests
    assert (request.headers["authorization"], request.headers["x-api-key"]) == (f"Bearer {KEY}", SECOND)
    run = Run.objects.get()
    assert run.status == ("completed" if reply.status == 200 else "failed")
    out, err = capfd.readouterr()
    assert "openai._base_client" in caplog.text, "the clients' logs are on"
    kept = {
        "tables": everything_stored(),
        "pages": everything_shown(web, browser, run),
        "logs": caplog.text,
        "terminal": out + err,
        "repr": f"{model!r} {vars(model)!r} {run.error}",
    }
    for place, text in kept.items():
        for secret in (KEY, SECOND):
            if place == "repr":
                text = text.replace(repr(model._api_key), "").replace(repr(model._secret_params), "")
            assert secret not in text, f"the key is in the {place}: …{text[max(0, text.find(secret) - 200) :][:400]}"
    if reply.status != 200:
        assert "[key]" in run.error["message"]
