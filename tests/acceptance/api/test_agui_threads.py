"""AG-UI: a conversation whose client stops, goes on, edits and follows, and whose agents delegate and hand over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from project.process import wait_until
from ravi_django import register
from ravi_django.agents import AgentTool, OrchestratorAgent, SubAgentConfig
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import HumanRequest, Run, Session, uuid7
from ravi_django.testing import ScriptedModel
from tests.acceptance.api.api_support import ASK, AguiClient, kinds, registered, text_of
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import code

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("payers")]


def says(text: str = "And now?") -> dict[str, Any]:
    return {"id": f"m-{text}", "role": "user", "content": text}


def body(thread: Any, **more: Any) -> dict[str, Any]:
    return {"threadId": str(thread), "runId": str(uuid7()), "messages": ASK, **more}


def texts(session: Session) -> list[str]:
    return [turn.blocks[0]["text"] for turn in session.turns.order_by("position")]


def reply(events: list[Any]) -> dict[str, Any]:
    """The assistant's message, as the client keeps it."""
    start = next(event for event in events if event.type.value == "TEXT_MESSAGE_START")
    return {"id": start.message_id, "role": "assistant", "content": text_of(events)}


def begin(agui: AguiClient, agent: str, thread: Any) -> None:
    """A call whose client goes away once the run is at work."""
    with agui.web.stream("POST", f"/ravi/agui/{agent}/", json=body(thread)) as response:
        assert next(line for line in response.iter_lines() if "RUN_STARTED" in line)
    wait_until(lambda: Run.objects.filter(status="running").exists(), BOUND_S)


@pytest.fixture
def sleeper(agent: str) -> str:
    async def sleep(ctx: Any, inbox: Any) -> str:
        if inbox[0].payload.message.text == "6 * 7?":
            with ctx.stay_awake():
                await asyncio.sleep(3600)
        return "awake"

    return str(code(sleep).id)


def test_a_closed_connection_cancels_nothing_and_a_new_message_replaces_the_run_at_work(
    agui: AguiClient, sleeper: str, worker: None
) -> None:
    thread = uuid7()
    begin(agui, sleeper, thread)
    assert Run.objects.get().cancel_requested_at is None

    events = agui.run(sleeper, thread, messages=[*ASK, says()])

    assert [run.status for run in Run.objects.order_by("id")] == ["cancelled", "completed"]
    assert text_of(events) == "awake"


def test_the_client_may_say_what_becomes_of_a_message_to_a_busy_thread(
    agui: AguiClient, sleeper: str, worker: None
) -> None:
    thread = uuid7()
    begin(agui, sleeper, thread)

    for on_busy, status in (("reject", 409), ("stop", 400)):
        props = {"on_busy": on_busy}
        assert agui.post(sleeper, thread, messages=[says()], forwardedProps=props).status_code == status

    assert Run.objects.get().status == "running"


def test_a_message_to_a_run_that_waits_for_others_waits_and_for_its_user_is_a_409(
    agui: AguiClient, staff: Any, worker: None
) -> None:
    for agent, status in (("react/payer", 409), ("react/careful", 200)):
        thread = uuid7()
        with agui.web.stream("POST", f"/ravi/agui/{agent}/", json=body(thread)) as response:
            assert next(line for line in response.iter_lines() if "RUN_STARTED" in line)
        wait_until(lambda: Run.objects.latest("id").status == "suspended", BOUND_S)
        with agui.web.stream("POST", f"/ravi/agui/{agent}/", json=body(thread, messages=[says()])) as response:
            assert response.status_code == status
            if status == 409:
                assert str(HumanRequest.objects.earliest("id").id) in response.read().decode()
    assert [run.status for run in Run.objects.order_by("id")] == ["suspended", "suspended", "queued"]


def test_a_call_without_a_new_message_follows_the_run_at_work(agui: AguiClient, sleeper: str, worker: None) -> None:
    thread = uuid7()
    assert agui.post(sleeper, thread, messages=[]).status_code == 400
    begin(agui, sleeper, thread)
    with agui.web.stream("POST", f"/ravi/agui/{sleeper}/", json=body(thread, messages=[])) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if "STATE_SNAPSHOT" in line)
        assert Run.objects.count() == 1
        agui.run(sleeper, thread, messages=[says()])
        assert next(line for line in lines if "RUN_FINISHED" in line and "cancelled" in line)


def test_an_edit_forks_after_the_turn_before_it_and_the_name_goes_along(
    agui: AguiClient, user: Any, stranger: Any, worker: None
) -> None:
    agent, thread = registered("echo", ["one", "one"]), uuid7()
    first = reply(agui.run(agent, thread))
    second = reply(agui.run(agent, thread, messages=[*ASK, first, says("two")]))
    agui.run(agent, thread, messages=[*ASK, first, says("two"), second, says("three")])
    old = Session.objects.get()

    edited = [*ASK, first, says("2")]
    fork = agui.run(agent, thread, runId="r4", messages=edited)

    new = Session.objects.exclude(id=old.id).get()
    assert (new.name, new.runs.count(), old.runs.count()) == (str(thread), 1, 3)
    assert texts(new) == ["6 * 7?", "one", "2", "one"]
    agui.run(agent, thread, runId="r4", messages=edited)  # a reconnect
    agui.run(agent, thread, messages=[*edited, reply(fork), says("four")])
    assert (Session.objects.count(), texts(new)[-2:]) == (2, ["four", "one"])
    theirs = world.submit(agent, "x", user=stranger)
    world.submit(agent, "y", user=stranger, session=theirs.session)
    wait_until(lambda: theirs.session.runs.filter(status="completed").count() == 2, BOUND_S)
    forged = {"id": f"{theirs.id}/1", "role": "assistant", "content": "x"}
    agui.run(agent, thread, messages=[forged, says("five")])
    assert (texts(new)[-2:], Session.objects.filter(owner=user).count()) == (["five", "one"], 2)


def test_a_delegation_is_shown_with_its_sub_agent_and_has_a_result(agui: AguiClient, worker: None) -> None:
    registered("expert", ["It is 42."])
    task = ToolUseBlock(tool_name="handoff_expert", arguments={"task": "?"}, call_id="c1")
    lead = register(
        OrchestratorAgent("lead", model=ScriptedModel([task, "done"]), sub_agents=[SubAgentConfig("react/expert")])
    )
    tool = registered("asker", [task, "done"], tools=[AgentTool("react/expert")])
    for agent in (str(lead.id), tool):
        events = agui.run(agent, uuid7(), protocolVersion="1.0")

        child = Run.objects.exclude(parent=None).latest("id")
        of_child = [event for event in events if getattr(event, "subagent_run_id", None) == str(child.id)]
        assert (kinds(of_child)[0], kinds(of_child)[-1]) == ("SUBAGENT_STARTED", "SUBAGENT_FINISHED")
        assert (of_child[0].name, of_child[0].parent_tool_call_id) == ("react/expert", "c1")
        assert text_of(of_child) == "It is 42."
        (result,) = [event for event in events if event.type.value == "TOOL_CALL_RESULT"]
        assert (result.tool_call_id, result.content) == ("c1", "It is 42.")
        assert text_of([event for event in events if event not in of_child]) == "done"
    assert not [kind for kind in kinds(agui.run(tool, uuid7())) if "SUBAGENT" in kind]  # an older client


def test_after_a_hand_over_the_calls_have_results_and_the_present_agent_goes_on(agui: AguiClient, worker: None) -> None:
    second = registered("second", ["I am the second."])
    call = ToolUseBlock(tool_name="handoff_second", arguments={"task": "?"}, call_id="c1")
    config = SubAgentConfig(second, handoff=True)
    model = ScriptedModel([call] * 9)
    front = str(register(OrchestratorAgent("front", model=model, sub_agents=[config])).id)
    thread = uuid7()

    events = agui.run(front, thread)
    (result,) = [event for event in events if event.type.value == "TOOL_CALL_RESULT"]
    assert (result.tool_call_id, result.content) == ("c1", f"handed over to {second}")

    assert text_of(agui.run(front, thread, runId="r2", messages=[*ASK, reply(events), says()])) == "I am the second."
    agui.run(front, thread, runId="r2", messages=[*ASK, reply(events), says()])  # a reconnect
    assert [run.agent for run in Run.objects.order_by("id")] == [second, second]
    assert len(model.calls) == 1


def test_a_child_that_waits_is_suspended_and_one_that_fails_has_an_error(agui: AguiClient, worker: None) -> None:
    outcomes = []
    for child in ("payer", "broken"):
        task = ToolUseBlock(tool_name=f"handoff_{child}", arguments={"task": "?"}, call_id="c1")
        agent = registered(f"lead-{child}", [task, "done"], tools=[AgentTool(f"react/{child}")])
        events = agui.run(agent, uuid7(), protocolVersion="1.0")
        outcomes.append(next(event for event in events if event.type.value in ("SUBAGENT_FINISHED", "SUBAGENT_ERROR")))
    waiting, failed = outcomes
    assert (waiting.outcome.type, "no such model" in failed.message) == ("suspended", True)
