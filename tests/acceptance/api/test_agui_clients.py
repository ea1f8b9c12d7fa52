"""Clients of AG-UI that others wrote: the official one in Node, and two chats in Chromium. `make test-clients` installs
those of npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from ravi_django.agents import AgentTool, ReActAgent
from ravi_django.capabilities.tools import CalculatorTool
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import Session, uuid7
from tests.acceptance.api.api_support import AGENT, PAID, registered
from tests.acceptance.ws.live_site import ThinkingModel
from tests.support import world
from tests.support.docs import Page
from tests.support.patience import BOUND_S
from tests.support.required import missing

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("payers"), pytest.mark.full]
CLIENTS = Path(__file__).resolve().parents[2] / "clients"


def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is missing: install Node 20 or newer, with npm")
    if not (CLIENTS / "node_modules").exists():
        missing("the client of AG-UI", "make test-clients installs it")
    return found


# ------------------------------------------------------------------------------------------------------ in Node


def talk(server: str, token: str, agent: str, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    said = {"url": f"{server}/ravi/agui/{agent}/", "token": token, "thread": str(uuid7()), "steps": steps}
    done = subprocess.run(
        [node(), "agui.mjs", json.dumps(said)], cwd=CLIENTS, capture_output=True, text=True, timeout=BOUND_S
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_text_streams_after_a_tool_and_the_thread_continues(server: str, key: str, worker: None) -> None:
    first, second = talk(server, key, AGENT, {"say": "6 * 7?"}, {"say": "Again?"})

    assert (first["text"], first["error"], first["interrupts"]) == ("It is 42.", None, [])
    assert first["kinds"].count("TOOL_CALL_RESULT") == 1 and first["kinds"].count("TEXT_MESSAGE_CONTENT") >= 1
    assert first["state"]["session"] == second["state"]["session"] == str(Session.objects.get().id)
    assert (second["kinds"][-1], Session.objects.get().runs.count()) == ("RUN_FINISHED", 2)


def test_the_client_runs_its_own_tool_and_sees_a_sub_agent(server: str, key: str, worker: None) -> None:
    registered("expert", ["It is 42."])
    fill = ToolUseBlock(tool_name="page_fill", arguments={}, call_id="c1")
    task = ToolUseBlock(tool_name="handoff_expert", arguments={"task": "?"}, call_id="c2")
    filler = registered("filler", [fill, task, "done"], client_tools=True, tools=[AgentTool("react/expert")])
    tools = [{"name": "fill", "description": "Fill the form.", "parameters": {"type": "object", "properties": {}}}]

    called, went_on = talk(server, key, filler, {"say": "Fill it.", "tools": tools}, {"result": "filled"})

    assert (called["error"], called["kinds"][-2:]) == (None, ["TOOL_CALL_END", "RUN_FINISHED"])
    assert (went_on["error"], went_on["said"][-1]) == (None, "done")
    assert {"SUBAGENT_STARTED", "SUBAGENT_FINISHED"} <= set(went_on["kinds"])


def test_an_approval_is_answered_by_the_client_and_answered_again_after_a_cut(server, key, worker) -> None:
    answers = [{"action": "approve"}, {"action": "deny"}]

    steps: list[dict[str, Any]] = [{"say": "Pay."}, {"answers": answers, "cut": "TEXT_MESSAGE_CONTENT"}]
    asked, cut, answered = talk(server, key, "react/payer", *steps)

    assert len(asked["interrupts"]) == 2 and cut["error"] == "TypeError: terminated"
    assert (answered["text"], answered["interrupts"], PAID) == ("done", [], [5])
    assert [said for said in answered["said"] if said] == ["Pay.", "paid 5", "done"], "each once"


def test_an_error_is_the_clients_error(server: str, key: str, worker: None) -> None:
    (failed,) = talk(server, key, "react/broken", {"say": "Hello."})

    assert "no such model" in failed["error"] and failed["kinds"][-1] == "RUN_ERROR"


@pytest.fixture
def thinker() -> str:
    agent = world.register(ReActAgent("thinker", model=ThinkingModel(), tools=[CalculatorTool()]))
    return str(agent.id)


@pytest.mark.parametrize("cut", ["REASONING_MESSAGE_CONTENT", "TOOL_CALL_START", "TEXT_MESSAGE_CONTENT"])
def test_a_client_whose_connection_is_cut_repeats_its_call(server, key, thinker, worker, cut) -> None:
    said, again, third = talk(server, key, thinker, {"say": "6 * 7?", "cut": cut}, {"say": "Again?"})

    assert (said["kinds"][-1], said["error"]) == (cut, "TypeError: terminated")
    assert (again["kinds"][-1], again["error"]) == ("RUN_FINISHED", None)
    assert again["said"] == ["6 * 7?", "I multiply.", "I look.", "42", "I read.", "It is 42."], "each once"
    assert (third["said"][-1], Session.objects.get().runs.count()) == ("It is 42.", 2)


# -------------------------------------------------------------------------------------------------- in a browser


def shown(page: Any, html: str, script: Path) -> Any:
    """The page with the script of its chat, served beside the site."""
    page.route("**/chat.html", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.route(f"**/{script.name}", lambda route: route.fulfill(path=script, content_type="text/javascript"))
    page.goto("/chat.html")
    return page


def test_assistant_ui_has_a_conversation_and_asks(server, key, worker, new_page) -> None:
    node()
    source = (CLIENTS / "assistant-ui.jsx").read_text()
    form = Page("clients").text.split("```jsx\n")[3].partition("```")[0]
    assert indent(form, "  ") in source, "what the docs show"
    script = CLIENTS / "node_modules" / "assistant-ui.js"
    fill = ToolUseBlock(tool_name="page_fill_form", arguments={"city": "Bonn"}, call_id="c1")
    clerk = registered("clerk", [fill, "It is filled in."], client_tools=True)
    talks = (AGENT, ["It is 42.", "It is 42."]), ("react/payer", ["done"]), (clerk, ["It is filled in."])
    for agent, said in talks:
        root = f'<main id="chat" data-url="{server}/ravi/agui/{agent}/" data-token="{key}"></main>'
        page = shown(new_page(server), f'<!doctype html>{root}<script src="/{script.name}"></script>', script)
        for number, text in enumerate(said):
            page.get_by_label("Message").fill("Hello.")
            page.get_by_text("Send").click()
            if agent == "react/payer":
                page.get_by_role("button", name="Approve").click()
            page.get_by_text(text, exact=True).nth(number).wait_for()
        assert page.errors + page.console == []
    assert (sorted(PAID), page.get_by_text("The city is Bonn.").count()) == ([5, 6], 1)


def test_the_chat_element_runs_a_tool_and_answers(server, user, worker, new_page) -> None:
    found = find_spec("django_admin_agent")
    if found is None or not found.submodule_search_locations:
        missing("the chat element", "pip install --no-deps django-admin-agent")
    folder = Path(found.submodule_search_locations[0]) / "static" / "django_admin_agent"
    html = Page("clients").text.split("```html\n")[1].partition("```")[0].replace("react/assistant", AGENT)
    page = new_page(server, user)
    page.context.add_cookies([{"name": "csrftoken", "value": "a" * 32, "url": server}])

    shown(page, f"<!doctype html>{html}", folder / "ag-ui-web-component.bundle.js")
    page.locator("ag-ui-chat textarea").fill("6 * 7?")
    page.locator("ag-ui-chat textarea").press("Enter")
    page.get_by_text("It is 42.").wait_for()

    assert page.get_by_text("Calculator").is_visible()
    assert page.errors + page.console == []
