"""The ten features that AG-UI's dojo shows, with CopilotKit's components in Chromium. `make test-clients` installs
them."""

from __future__ import annotations

import threading
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from ravi_django import RunContext, tool
from ravi_django.agents import AgentTool, ReActAgent
from ravi_django.capabilities.tools import CalculatorTool
from ravi_django.kernel import ToolUseBlock
from tests.acceptance.api.api_support import PAID, registered
from tests.acceptance.ws.live_site import ThinkingModel
from tests.support import world
from tests.support.docs import Page
from tests.support.writer import Writer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.full]
BUILT = Path(__file__).resolve().parents[2] / "clients" / "copilotkit" / "node_modules" / "pages"


@pytest.fixture
def dojo(server: str, key: str, worker: None, new_page: Any) -> Any:
    """`dojo(feature, agent)`: the page of a feature, which talks to this agent."""
    if not BUILT.exists():
        pytest.skip("CopilotKit is missing: make test-clients installs it where Node 20 or newer is")

    def opened(feature: str, agent: str) -> Any:
        url = f"{server}/ravi/agui/{agent}/"
        root = f'<main id="chat" data-feature="{feature}" data-url="{url}" data-token="{key}"></main>'
        html = f'<!doctype html><meta charset="utf-8">{root}<script type="module" src="/pages/pages.js"></script>'
        page = new_page(server)
        page.route("**/chat.html", lambda route: route.fulfill(body=html, content_type="text/html"))
        page.route("**/pages/*.js", lambda route: route.fulfill(path=BUILT / Path(route.request.url).name))
        page.goto("/chat.html")
        return page

    return opened


def say(page: Any, text: str) -> None:
    page.get_by_placeholder("Type a message...").fill(text)
    page.keyboard.press("Enter")


def call(tool: str, **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock(tool_name=tool, arguments=arguments, call_id="c1")


@tool
def weather(city: str) -> str:
    """The weather."""
    return f"rain in {city}"


@tool
async def plan(ctx: RunContext) -> str:
    """Make a plan."""
    await ctx.set_state({"steps": [{"name": "look", "done": True}, {"name": "leap", "done": False}]})
    return "made"


@tool
async def cook(ctx: RunContext, dish: str) -> str:
    """Choose the dish."""
    await ctx.set_state({"dish": dish})
    return "chosen"


def heard(messages: Any, options: Any) -> str:
    """The last thing that the model was given."""
    return f"I heard {messages[-1].text}"


def test_agentic_chat(dojo: Any) -> None:
    shown = Page("clients").text.split("```jsx\n")[2].partition("```")[0]
    assert indent(shown, " " * 4) in (BUILT.parents[1] / "pages.jsx").read_text(), "what the docs show"
    script = [call("page_fill_form", city="Bonn"), heard]
    page = dojo("agentic_chat", registered("clerk", script, client_tools=True))

    say(page, "I live in Bonn.")

    page.get_by_text("The city is Bonn.").wait_for()
    page.get_by_text("I heard filled in").wait_for()
    assert page.errors + page.console == []


def test_human_in_the_loop(dojo: Any) -> None:
    asks = call("page_confirm_steps", steps=["Dig.", "Fill."])
    page = dojo("human_in_the_loop", registered("planner", [asks, heard], client_tools=True))

    say(page, "Plan a hole.")
    page.get_by_text("Fill.").wait_for()
    page.get_by_text("Only the first").click()

    page.get_by_text('I heard {"accepted":["Dig."]}').wait_for()
    assert page.errors + page.console == []


def test_backend_tools(dojo: Any) -> None:
    page = dojo("backend_tools", registered("forecaster", [call("weather", city="Bonn"), "Wet."], tools=[weather]))

    say(page, "Weather?")

    page.get_by_text("complete: Bonn rain in Bonn").wait_for()
    page.get_by_text("Wet.").wait_for()
    assert page.errors + page.console == []


def test_tool_based_ui(dojo: Any) -> None:
    shows = call("page_haiku", lines=["old pond", "a frog leaps in", "sound"])
    page = dojo("tool_based_ui", registered("poet", [shows, "There."], client_tools=True))

    say(page, "A haiku.")

    page.get_by_text("old pond / a frog leaps in / sound").wait_for()
    page.get_by_text("There.").wait_for()
    assert page.errors + page.console == []


def test_agentic_ui(dojo: Any) -> None:
    page = dojo("agentic_ui", registered("planner", [call("plan"), "Planned."], tools=[plan]))

    say(page, "Plan.")

    page.get_by_text("✓ look, … leap").wait_for()
    page.get_by_text("Planned.").wait_for()
    assert page.errors + page.console == []


def test_shared_state(dojo: Any) -> None:
    def chooses(messages: Any, options: Any) -> Any:
        return heard(messages, options) if "cake" in messages[-1].text else call("cook", dish="soup")

    page = dojo("shared_state", registered("cook", [chooses, "done"], tools=[cook]))

    say(page, "Cook.")
    page.get_by_text("done").wait_for()
    assert page.get_by_label("Dish").input_value() == "soup"
    page.get_by_label("Dish").fill("cake")
    say(page, "And now?")
    page.get_by_text('{"state":{"dish":"cake"}}').wait_for()

    assert page.errors + page.console == []


def test_predictive_updates(dojo: Any) -> None:
    hold = threading.Event()
    model = Writer([call("page_write", text="Once upon a time")], hold=hold)
    page = dojo("predictive_updates", str(world.register(ReActAgent("author", model=model, client_tools=True)).id))

    say(page, "A story.")

    page.get_by_text("inProgress: Once upon a", exact=True).wait_for()
    hold.set()
    page.get_by_text("complete: Once upon a time").wait_for()
    page.get_by_text("done", exact=True).wait_for()
    assert page.errors + page.console == []


def test_sub_agents(dojo: Any) -> None:
    registered("expert", ["It is 42."])
    asks = call("handoff_expert", task="6 * 7?")
    page = dojo("sub_agents", registered("lead", [asks, "The expert knows."], tools=[AgentTool("react/expert")]))

    say(page, "6 * 7?")

    page.get_by_text("The expert knows.").wait_for()
    page.get_by_text("It is 42.").wait_for()
    page.get_by_text("SUBAGENT_STARTED").wait_for()
    page.get_by_text("SUBAGENT_FINISHED").wait_for()
    assert page.errors + page.console == []


def test_reasoning(dojo: Any) -> None:
    world.register(ReActAgent("thinker", model=ThinkingModel(), tools=[CalculatorTool()]))
    page = dojo("reasoning", "react/thinker")

    say(page, "6 * 7?")

    page.get_by_text("It is 42.").wait_for()
    page.get_by_text("Thought for").first.click()
    page.get_by_text("I multiply.").wait_for()
    assert page.errors + page.console == []


@pytest.mark.usefixtures("payers")
def test_interrupts(dojo: Any) -> None:
    page = dojo("interrupts", "react/payer")

    say(page, "Pay.")
    page.get_by_role("button", name="Approve").click()

    page.get_by_text("done").wait_for()
    assert (page.errors + page.console, sorted(PAID)) == ([], [5, 6])
