"""Who gets which status from each REST call: every URL pattern and method has a row, and all misfits are listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.db import transaction
from rest_framework.test import APIClient

from ravi_django import urls
from tests.acceptance.access.world import AGENT, PEOPLE, World, make, misfits
from tests.acceptance.api.api_support import RUNSERVER
from tests.support.world import tickets_issue

pytestmark = pytest.mark.django_db

BY_TICKET = "by ticket"
TABLE = Path(__file__).with_name("rest_matrix.txt")
BODIES: dict[str, Any] = {
    "POST run-list": {"agent": AGENT, "input": "hi"},
    "POST session-messages": {"agent": AGENT, "text": "hi"},
    "PATCH session-detail": {"title": "hi"},
    "POST run-fork": {"after_seq": 1},
    "POST run-signals": {"name": "parcel", "payload": {}},
    "POST run-page-fork": {"after_seq": 1},
    "POST run-page-signals": {"name": "parcel", "payload": {}},
    "PUT run-feedback": {"score": 1},
    "POST request-answer": {"action": "approve"},
    "POST request-reassign": {"to": "staff"},
    "POST follow-list": {"agent": AGENT, "topic": "news/other"},
    "POST file-list": lambda world: {"file": ContentFile(b"hi", "a.txt")},
    "POST topic-emit": {"text": "hi"},
    "POST topic-emit-in-namespace": {"text": "hi"},
    "POST v1-chat": lambda world: {
        "model": AGENT,
        "messages": [{"role": "tool", "tool_call_id": str(world.rows["humanrequest"].pk), "content": "no action"}],
        "metadata": {"session": str(world.run.session_id)},
    },
    "POST v1-responses": lambda world: {
        "model": AGENT,
        "input": [{"type": "function_call_output", "call_id": str(world.rows["humanrequest"].pk), "output": "no"}],
        "conversation": str(world.run.session_id),
    },
    "POST agui": lambda world: _resuming(world),
    "POST agui-in-namespace": lambda world: _resuming(world),
}


def _resuming(world: World) -> dict[str, Any]:
    entry = {"interruptId": str(world.rows["humanrequest"].pk), "status": "resolved", "payload": "no action"}
    return {"threadId": str(world.run.session_id), "runId": "r", "messages": [], "resume": [entry]}


def calls() -> Iterator[tuple[str, str, Any]]:
    """Name of the row, method, pattern: of everything that the URL patterns let in."""
    for pattern in urls.urlpatterns:
        view = getattr(pattern.callback, "cls", None) or pattern.callback.view_class
        methods = getattr(pattern.callback, "actions", None) or {
            name for name in view.http_method_names if hasattr(view, name)
        }
        for method in list(methods):
            if method not in ("head", "options"):
                yield f"{method.upper()} {pattern.name}", method, pattern
                if pattern.name.endswith("-events"):
                    yield f"{method.upper()} {pattern.name} {BY_TICKET}", method, pattern


def address(pattern: Any, world: World) -> str:
    noun = str(pattern.name).split("-")[0]
    row = world.rows.get({"request": "humanrequest", "file": "ravifile"}.get(noun, noun), world.run)
    parts = {"type": "react", "key": "matrix", "namespace": "ns", "source": "sport", "token": "x", "id": row.pk}
    if pattern.name == "topic-events":
        parts |= {"type": "agent.progress", "source": world.run.pk}
    route = {"nothing": "no/such/path", "no-page": "ui/no"}.get(pattern.name, str(pattern.pattern))
    for name, value in parts.items():
        route = route.replace(f"<str:{name}>", str(value)).replace(f"<uuid:{name}>", str(value))
    assert "<" not in route, f"{route}: the test has no value for it"
    return f"/ravi/{route}"


def test_each_call_answers_each_person_as_the_table_says(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "TENANT_OF": "tests.acceptance.access.world.tenant_of"}
    world = make()
    seen: dict[str, list[str]] = {}
    for row, method, pattern in calls():
        for person in PEOPLE:
            client = APIClient(raise_request_exception=False, HTTP_ACCEPT="application/json, */*;q=0.1", **RUNSERVER)
            user, where = world.people[person], address(pattern, world)
            if row.endswith(BY_TICKET):
                where += f"?ticket={tickets_issue(user)[0] if user else 'unknown'}"
            elif user is not None:
                client.force_authenticate(user)
            with transaction.atomic():
                body = BODIES.get(row, {})
                body = body(world) if callable(body) else body
                form = "multipart" if "file" in body else "json"
                response = getattr(client, method)(where, body, format=form)
                if response.streaming:
                    response.getvalue()  # to the end, which closes the file
                if response.status_code == 401:
                    assert response["WWW-Authenticate"] and response.json()["error"]["code"] == "unauthenticated", row
                seen.setdefault(row, []).append(str(response.status_code))
                transaction.set_rollback(True)

    wrong = misfits(TABLE, seen)
    assert not wrong, wrong
