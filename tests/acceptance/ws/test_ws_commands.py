"""What a client says on a socket, and what it is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from project.process import wait_until
from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.agents.tools import client_tool
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import Agent, HumanRequest, Run, Turn
from ravi_django.services import exchanges
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.django_db(transaction=True)


def until(client: Any, *types: str) -> list[dict[str, Any]]:
    """The frames up to and with the first of one of these types."""
    frames = [json.loads(client.recv(timeout=BOUND_S))]
    while frames[-1]["type"] not in types:
        frames.append(json.loads(client.recv(timeout=BOUND_S)))
    return frames


@pytest.fixture
def opened(server, demo, ticket) -> Any:
    return lambda kind, key, tail="", user=demo: server.connect(f"/ws/ravi/{kind}/{key}/?ticket={ticket(user)}{tail}")


def test_cancel_ends_a_running_run(worker, opened, paced, submitted) -> None:
    run = submitted("react/paced")
    with opened("runs", run.id) as client:
        paced.let()
        until(client, "text.delta")

        client.send('{"type": "cancel"}')
        answer = until(client, "accepted")[-1]
        last = until(client, "stream.done")[-1]

    assert answer == {"type": "accepted", "run": str(run.id)}
    assert last["reason"] == "cancelled"
    run.refresh_from_db()
    assert run.status == "cancelled"
    assert run.cancel_reason == "cancelled by its owner"


def test_cancel_ends_a_waiting_run_and_its_stream_at_once(opened, submitted) -> None:
    run, ended = (submitted(send=lambda run_id: None) for _ in range(2))
    with opened("runs", run.id) as client, opened("runs", ended.id) as late:
        client.send('{"type": "cancel"}')
        frames = until(client, "stream.done")
        world.request_cancel(ended.id, "by somebody else")
        late.send('{"type": "cancel"}')
        refused = json.loads(late.recv(timeout=BOUND_S))

    assert frames[-1]["reason"] == Run.objects.get(id=run.id).status == "cancelled"
    assert (refused["type"], refused["code"]) == ("error", "illegal_transition")


def test_a_message_ends_the_call_of_a_tool_in_the_page(worker, opened, demo) -> None:
    call = ToolUseBlock(tool_name="page_fill", arguments={}, call_id="c1")
    agent = register(ReActAgent("filler", model=ScriptedModel([call, "again", "left"]), client_tools=True))
    run, _ = exchanges.submit(demo, agent, "Fill it.", client_tools=client_tool.checked_tools([{"name": "fill"}]))
    assert wait_until(lambda: HumanRequest.objects.filter(run=run).exists(), BOUND_S)

    with opened("runs", run.id) as client:
        client.send('{"type": "message", "text": "Leave it."}')
        until(client, "stream.done")

    assert HumanRequest.objects.get().answer["action"] == "cancel"
    assert Run.objects.get(id=run.id).status == "completed"


def test_a_message_becomes_the_next_run_of_the_session(worker, opened, paced, submitted, demo) -> None:
    run = submitted("react/paced", "hello")
    with opened("runs", run.id) as client:
        client.send(json.dumps({"type": "message", "text": "What is 6 * 7?"}))
        new = Run.objects.get(id=until(client, "accepted")[-1]["run"])
        paced.let_all()
        until(client, "stream.done")

    assert (new.session_id, new.agent, new.owner) == (run.session_id, "react/paced", demo)
    assert wait_until(lambda: Run.objects.get(id=new.id).status == "completed", BOUND_S)
    turns = [(turn.role, turn.blocks[0]["text"]) for turn in Turn.objects.filter(run=new.id)]
    assert turns == [("user", "What is 6 * 7?"), ("assistant", "".join(paced.words))]
    assert set(Turn.objects.values_list("run", flat=True)) == {run.id, new.id}


def test_a_bad_frame_is_answered_and_changes_nothing(opened, submitted) -> None:
    run = submitted(send=lambda run_id: None)
    with opened("runs", run.id) as client:
        for sent, code, field in (
            *(("nonsense", "invalid_input", None), ("[]", "invalid_input", None), ("{}", "invalid_input", "type")),
            ('{"type": "dance"}', "invalid_input", "type"),
            ('{"type": ["cancel"]}', "invalid_input", "type"),
            ('{"type": "message"}', "invalid_input", "text"),
            ('{"type": "message", "text": 7}', "invalid_input", "text"),
            ('{"type": "message", "input": [{"type": "image", "file": "x"}]}', "invalid_input", "input"),
            ('{"type": "message", "text": "hi", "on_busy": "reject"}', "thread_busy", None),
            ('{"type": "message", "text": "  "}', "invalid_input", "input"),
            ('{"type": "message", "text": "hi", "user": 1}', "invalid_input", "user"),
            ('{"type": "cancel", "run": "other"}', "invalid_input", "run"),
            *(("[" * 100_000, "invalid_input", None), (b"\x00\x01", "invalid_input", None)),
            (json.dumps({"type": "message", "text": "é" * 140_000}), "too_large", "input"),
            (json.dumps({"type": "message", "text": "x" * 2_000_000}), "too_large", None),
        ):
            client.send(sent)
            answer = json.loads(client.recv(timeout=BOUND_S))
            assert (answer["type"], answer["code"], answer.get("field")) == ("error", code, field), sent[:80]
            assert answer["message"] and "seq" not in answer
        Agent.objects.update_or_create(address="react/assistant", defaults={"enabled": False})
        client.send('{"type": "message", "text": "hi"}')
        answer = json.loads(client.recv(timeout=BOUND_S))
        assert (answer["code"], answer["field"]) == ("not_found", "agent")
        client.send('{"type": "cancel"}')  # the socket is still there
        until(client, "stream.done")

    assert Run.objects.count() == 1


# ---------------------------------------------------------------------------------------------- session sockets


def test_a_session_socket_goes_from_run_to_run(worker, opened, paced, submitted) -> None:
    run = submitted("react/paced")
    paced.let(12)
    with opened("sessions", run.session_id) as client:
        first = until(client, "stream.done")
        client.send('{"type": "message", "text": "again"}')
        new = until(client, "accepted")[-1]["run"]
        paced.let_all()
        second = until(client, "stream.done")
        third = submitted("react/paced", session=run.session_id)
        others = until(client, "stream.done")

    for frames, key in ((first, run.id), (second, new), (others, third.id)):
        assert {frame["run"] for frame in frames} == {str(key)}
        assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))


def test_a_session_socket_begins_with_the_oldest_active_run(worker, opened, paced, submitted) -> None:
    ended = submitted("react/assistant")
    assert wait_until(lambda: Run.objects.get(id=ended.id).is_terminal, BOUND_S)
    active = submitted("react/paced", session=ended.session_id)
    queued = submitted("react/paced", session=ended.session_id)

    with opened("sessions", ended.session_id) as client:
        frames = until(client, "progress")
        paced.let_all()
        frames += until(client, "stream.done") + until(client, "stream.done")

    assert list(dict.fromkeys(frame["run"] for frame in frames)) == [str(active.id), str(queued.id)]


def test_a_session_socket_comes_back_where_it_was(worker, opened, paced, submitted) -> None:
    run = submitted("react/paced")
    paced.let(12)
    with opened("sessions", run.session_id) as client:
        seen = until(client, "text.delta")
    assert wait_until(lambda: Run.objects.get(id=run.id).is_terminal, BOUND_S)
    later = submitted("react/paced", session=run.session_id)
    paced.let_all()
    assert wait_until(lambda: Run.objects.get(id=later.id).is_terminal, BOUND_S)

    with opened("sessions", run.session_id, f"&run={run.id}&after={seen[-1]['seq']}") as client:
        rest = until(client, "stream.done")
        more = until(client, "stream.done")

    assert [frame["seq"] for frame in seen + rest] == list(range(1, len(seen + rest) + 1))
    assert {frame["run"] for frame in rest} == {str(run.id)}
    assert {frame["run"] for frame in more} == {str(later.id)}
    assert more[0]["seq"] == 1


def test_an_idle_session_has_nothing_to_cancel(worker, opened, submitted) -> None:
    run = submitted()
    with opened("sessions", run.session_id) as client:
        until(client, "stream.done")

        def conflict() -> bool:  # the socket may not have moved on from the ended run yet: the same answer
            client.send('{"type": "cancel"}')
            return json.loads(client.recv(timeout=BOUND_S))["code"] == "conflict"

        assert wait_until(conflict, BOUND_S)
