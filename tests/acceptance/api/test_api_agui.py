"""AG-UI: its streams are read by the official types, from a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.files.base import ContentFile
from rest_framework.authtoken.models import Token

from ravi_django.api import sse
from ravi_django.models import HumanRequest, Session, Turn, uuid7
from tests.acceptance.api.api_support import AGENT, ASK, PAID, AguiClient, kinds, text_of
from tests.support import world
from tests.support.docs import Page

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("payers")]


def test_a_run_has_tools_text_and_an_end_and_its_thread_continues(agui: AguiClient, worker: None) -> None:
    thread = uuid7()  # as clients do: the server has no such session

    events = agui.run(AGENT, thread, runId="r1")

    assert [kind for kind in kinds(events) if kind != "TEXT_MESSAGE_CONTENT"] == [
        *("RUN_STARTED", "STATE_SNAPSHOT"),
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "RUN_FINISHED"),
    ]
    assert text_of(events) == "It is 42."
    start, end = events[0], events[-1]
    assert (start.thread_id, start.run_id, end.outcome.type) == (str(thread), "r1", "success")
    results = [event for event in events if event.type.value == "TOOL_CALL_RESULT"]
    again = [
        *ASK,
        {"id": results[0].message_id, "role": "tool", "toolCallId": "c1", "content": "42"},
        {"id": "m2", "role": "user", "content": "Again?"},
    ]
    agui.run(AGENT, thread, messages=again, state=events[1].snapshot)
    assert Session.objects.get().runs.count() == 2


def test_a_client_reconnects_in_mid_stream(agui: AguiClient, worker: None) -> None:
    body = {"threadId": str(uuid7()), "runId": "r1", "messages": ASK, "tools": [], "context": []}
    with agui.web.stream("POST", f"/ravi/agui/{AGENT}/", json=body) as response:
        assert next(line for line in response.iter_lines() if "TOOL_CALL_START" in line)

    events = agui.run(AGENT, body["threadId"], runId="r1")

    assert ("TOOL_CALL_START" in kinds(events), text_of(events)) == (True, "It is 42.")
    other = [*ASK, {"id": "m2", "role": "assistant", "content": "It"}, {**ASK[0], "id": "m3"}, {**ASK[0], "id": "m4"}]
    assert agui.post(AGENT, body["threadId"], runId="r1", messages=other).status_code == 409
    assert Session.objects.get().runs.count() == 1


def test_a_thread_is_a_name_of_its_user_and_nobody_can_forestall_it(
    agui: AguiClient, server: str, stranger: Any, worker: None
) -> None:
    other = AguiClient(server, Token.objects.create(user=stranger).key)
    with other.web:
        first = other.run(AGENT, thread := uuid7())
    theirs = Session.objects.get()
    for word in (thread, theirs.id, "https://example.org/a page"):
        with ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(lambda _: agui.run(AGENT, word), range(2)))
        assert {event.thread_id for run in runs for event in (run[0], run[-1])} == {str(word)}
        assert len({run[1].snapshot["session"] for run in runs} | {first[1].snapshot["session"]}) == 2
    assert (Session.objects.count(), theirs.runs.count()) == (4, 1)
    mine = Session.objects.get(name=str(thread), owner_key=str(Session.objects.latest("id").owner_id))
    assert agui.run(AGENT, mine.id)[1].snapshot["session"] == str(mine.id)


def test_interrupts_are_answered_by_resume(agui: AguiClient, worker: None) -> None:
    thread = uuid7()
    asked = agui.run("react/payer", thread)[-1].outcome.interrupts
    assert [(one.reason, one.metadata["request"]["arguments"]["amount"]) for one in asked] == [
        ("approval", 5),
        ("approval", 6),
    ]

    fields = asked[0].response_schema["properties"]
    assert fields["action"]["enum"] == ["approve", "deny", "edit", "skip", "cancel"]
    assert fields["arguments"]["properties"]["amount"]["type"] == "integer"

    answers = [
        {"interruptId": asked[0].id, "status": "resolved", "payload": {"action": "approve"}},
        {"interruptId": asked[1].id, "status": "cancelled"},
    ]
    events = agui.run("react/payer", thread, resume=answers)

    assert (text_of(events), events[-1].outcome.type, PAID) == ("done", "success", [5])
    assert text_of(agui.run("react/payer", thread, resume=answers)) == "done"
    answers[1] = {**answers[0], "interruptId": asked[1].id}
    assert agui.post("react/payer", thread, resume=answers).json()["error"]["field"] == "resume"


def test_a_run_that_fails_ends_with_its_error(agui: AguiClient, worker: None) -> None:
    last = agui.run("react/broken", uuid7())[-1]

    assert (last.type.value, last.code) == ("RUN_ERROR", "ModelError") and "no such model" in last.message


def test_what_an_agent_has_of_its_own_is_refused_by_name(agui: AguiClient) -> None:
    system = [{"id": "s", "role": "system", "content": "x"}, *ASK]
    for body, status, field in (
        ({"messages": system}, 400, "messages.0.role"),
        ({"messages": [{**ASK[0], "content": "x" * 300_000}]}, 413, "input"),
        ({"thread": "n" * 201}, 400, "threadId"),
    ):
        response = agui.post(AGENT, **{"thread": uuid7(), **body})
        assert (response.status_code, response.json()["error"]["field"]) == (status, field), body
    assert not HumanRequest.objects.exists() and not Session.objects.exists()


def test_a_part_names_an_uploaded_file(
    agui: AguiClient, worker: None, client: Any, settings: Any, tmp_path: Any
) -> None:
    settings.MEDIA_ROOT = tmp_path
    content = ContentFile(b"%PDF-1.7 ...", "a.pdf")
    file = client.post("/ravi/files/", {"file": content}, format="multipart").json()["id"]
    part = {"type": "document", "source": {"type": "file", "value": file}}

    agui.run(AGENT, uuid7(), messages=[{**ASK[0], "content": [part]}])

    block = Turn.objects.get(role="user").content[0]
    assert (block["type"], block["file"], block["name"]) == ("document", file, "a.pdf")


def test_an_idle_stream_sends_comments(agui: AguiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "dispatch_send")
    assert sse.KEEP_ALIVE_S == 15
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.1)
    body = {"threadId": "", "runId": "r1", "messages": ASK}

    with agui.web.stream("POST", f"/ravi/agui/{AGENT}/", json=body) as response:
        lines = (line for line in response.iter_lines() if line.startswith(":"))
        assert [next(lines) for _ in range(3)] == [": open", ": keep-alive", ": keep-alive"]


def test_the_page_of_the_docs_holds(
    server: str, key: str, worker: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Page("clients").code("agui.py").replace("http://127.0.0.1:8000", server).replace("react/assistant", AGENT)

    monkeypatch.setenv("RAVI_TOKEN", key)
    exec(code, {})

    assert capsys.readouterr().out == "It is 42."
