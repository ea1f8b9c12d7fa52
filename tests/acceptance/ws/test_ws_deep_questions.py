"""A question deep in a tree, as the one who watches the root's socket sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from ravi_django.models import HumanRequest, Run
from tests.support import world
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tree() -> Any:
    """react/boss has a generator as a tool, which has another do its work: that one asks."""
    from ravi_django import register
    from ravi_django.agents import ReActAgent
    from ravi_django.agents.flow import BaseAgentProxy, SubagentCall, TurnEnd, WaitForInput
    from ravi_django.kernel import ToolUseBlock
    from ravi_django.testing import ScriptedModel

    class Painter(BaseAgentProxy):
        """Paints."""

        async def next_turn(self, prompt: Any) -> Any:
            told = yield WaitForInput("Which colour?", choices=["red", "blue"])
            yield TurnEnd(f"painted {told.text} for {told.by}")

    class Foreman(BaseAgentProxy):
        """Has things painted."""

        async def next_turn(self, prompt: Any) -> Any:
            outcome = yield SubagentCall("agent/painter", prompt.text)
            yield TurnEnd(outcome.result["text"])

    call = ToolUseBlock(tool_name="handoff_foreman", arguments={"task": "the door"}, call_id="c1")
    model = ScriptedModel([call, lambda messages, options: f"It is {messages[-1].content[0].content[0].text}."])
    found = [Painter("painter"), foreman := Foreman("foreman"), ReActAgent("boss", model=model, tools=[foreman])]
    for agent in found:
        register(agent)
    yield found
    for agent in found:
        world.unregister(agent.id)


def test_the_roots_socket_shows_the_question_and_what_comes_of_the_answer(
    tree, worker, server, submitted, demo, ticket
) -> None:
    run = submitted("react/boss")

    with server.connect(f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}") as client:
        frames = [json.loads(client.recv(timeout=BOUND_S))]
        while frames[-1]["type"] != "request":
            frames.append(json.loads(client.recv(timeout=BOUND_S)))
        asked = frames[-1]
        line = list(Run.objects.order_by("depth"))
        assert [found.agent for found in line] == ["react/boss", "agent/foreman", "agent/painter"]
        client.send(json.dumps({"type": "answer", "request": asked["id"], "action": "answer", "text": "red"}))
        try:
            while True:
                frames.append(json.loads(client.recv(timeout=BOUND_S)))
        except ConnectionClosed:
            pass

    shown = ("run", "agent", "parent", "depth", "kind", "text", "choices")
    assert {name: asked[name] for name in shown} == {
        "run": str(line[2].id),
        "agent": "agent/painter",
        "parent": str(line[1].id),
        "depth": 2,
        "kind": "question",
        "text": "Which colour?",
        "choices": ["red", "blue"],
    }
    assert (asked["root"], asked["status"], asked["version"], asked["context"]) == (str(run.id), "pending", 1, "")
    assert HumanRequest.objects.get(id=asked["id"]).run_id == line[2].id
    (closed,) = [frame for frame in frames if frame["type"] == "request.closed"]
    accepted = {"type": "accepted", "request": asked["id"], "run": str(line[2].id)}
    frames.remove(accepted)
    told = (closed["id"], closed["depth"], closed["status"], closed["answered_by"])
    assert told == (asked["id"], 2, "answered", "demo")
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[-1]["type"] == "stream.done"
    assert Run.objects.get(id=run.id).output == "It is painted red for demo."
