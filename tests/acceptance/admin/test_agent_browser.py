"""An agent made in a browser runs without a line of code. Needs a Chromium: Playwright's own, or one on the PATH."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client

from ravi_django.models import Agent, Run
from ravi_django.runtime import bodies
from ravi_django.runtime.inprocess import Runtime

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def open_page(live_server: Any) -> Iterator[Any]:
    """`open_page(**options)`: a page on which a superuser is logged in."""
    api = pytest.importorskip("playwright.sync_api")
    get_user_model().objects.create_superuser("admin", "admin@example.org", "admin")
    bodies.forget()  # the database is empty again
    with api.sync_playwright() as playwright:
        browser = _launch(playwright, api.Error)

        def opened(**options: Any) -> Any:
            page = browser.new_page(**options)
            page.goto(f"{live_server.url}/admin/login/?next=/admin/ravi/agent/")
            page.fill("input[name=username]", "admin")
            page.fill("input[name=password]", "admin")
            page.click("input[type=submit]")
            page.wait_for_selector("#changelist")
            return page

        yield opened
        browser.close()


def _launch(playwright: Any, error: type[Exception]) -> Any:
    paths = [None, *filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))]
    for path in paths:
        with suppress(error):
            return playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
    return pytest.skip("there is no Chromium: playwright install chromium")


def make_agent(page: Any) -> None:
    page.click("text=Add agent")
    page.fill("[name=address]", "support/sums")
    page.fill("[name=name]", "Sums")
    page.fill("[name=model]", "rehearsal")
    page.fill("[name=system_instructions]", "You do sums for {{ user.username }}. Be {{ tone }}.")
    page.fill("[name=variables-0-name]", "tone")
    page.fill("[name=variables-0-default]", "brief")
    page.check("input[name=tool_names][value=calculator]")


def in_thread(function: Callable[[], Any]) -> Any:
    """What uses the database or a loop of its own: in the test's thread Playwright's loop runs."""

    def work() -> Any:
        try:
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(timeout=90)


async def drive(run_id: str) -> None:
    try:
        async with Runtime() as runtime:
            await runtime.result(run_id, timeout=60)
    finally:
        await sync_to_async(connections.close_all)()


def ask_over_rest(question: str) -> tuple[dict[str, Any], Run]:
    """As an ordinary user, driven by an engine in this process: what REST says of the run at last, and its row."""
    client = Client()
    client.force_login(get_user_model().objects.create_user("olga"))
    body = {"agent": "support/sums", "input": question}
    response = client.post("/ravi/runs/", body, content_type="application/json")
    assert response.status_code == 201, response.content
    run_id = response.json()["id"]
    asyncio.run(drive(run_id))
    return client.get(f"/ravi/runs/{run_id}/").json(), Run.objects.get(id=run_id)


def test_an_agent_made_in_the_admin_answers_an_ordinary_user(open_page) -> None:
    page = open_page()
    make_agent(page)
    page.click("input[name=_preview]")
    page.wait_for_selector("#preview")
    assert page.inner_text("#preview pre >> nth=0") == "You do sums for admin. Be brief."
    page.click("input[name=_save]")
    page.wait_for_selector(".messagelist .success")

    answer, run = in_thread(lambda: ask_over_rest("What is 17 * 23?"))

    assert answer["status"] == "completed" and "391" in answer["output"]
    assert run.agent_version == 1
    page.goto(f"{page.url.split('/admin/')[0]}/admin/ravi/run/{run.pk}/change/")
    assert "tool.call calculator" in page.inner_text("#journal").replace("\n", " ")
    page.click("text=version 1")
    page.wait_for_selector("text=The first version")


def test_the_form_works_by_keyboard_and_without_javascript(open_page) -> None:
    page = open_page(java_script_enabled=False)
    make_agent(page)
    page.focus("[name=system_instructions]")
    order = []
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(page.locator("*:focus").get_attribute("name"))
    assert order == [
        *[f"variables-0-{column}" for column in ("name", "default", "description", "required", "sample")],
        *[f"variables-1-{column}" for column in ("name", "default", "description")],
    ]
    page.focus("[name=max_iterations]")
    page.fill("[name=max_iterations]", "0")
    page.keyboard.press("Enter")
    page.wait_for_selector(".field-max_iterations .errorlist")
    assert "greater than or equal to 1" in page.inner_text(".field-max_iterations .errorlist")
    page.fill("[name=max_iterations]", "5")
    page.focus("input[name=_save]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".messagelist .success")

    agent = in_thread(lambda: Agent.objects.get(address="support/sums"))
    assert (agent.spec["max_iterations"], agent.spec["tool_names"]) == (5, ["calculator"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_can_be_read_in_both_themes_and_on_a_phone(open_page, scheme, width) -> None:
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    make_agent(page)
    page.click("input[name=_preview]")
    page.wait_for_selector("#preview")

    for selector in ("#preview pre", ".ravi-choice-name", "[name=system_instructions]", "#preview h2"):
        assert _contrast(page, selector) >= 4.5, selector
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1  # nothing but tables scrolls sideways


def _contrast(page: Any, selector: str) -> float:
    """WCAG's ratio of an element's text to what is behind it."""
    front, back = page.evaluate(
        """selector => {
            let element = document.querySelector(selector);
            const colour = getComputedStyle(element).color;
            let behind = 'rgba(0, 0, 0, 0)';
            while (behind === 'rgba(0, 0, 0, 0)' && element) {
                behind = getComputedStyle(element).backgroundColor;
                element = element.parentElement;
            }
            return [colour, behind];
        }""",
        selector,
    )
    light, dark = sorted((_luminance(front), _luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
