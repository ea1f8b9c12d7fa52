"""An agent made in a browser runs without a line of code. Needs a Chromium: Playwright's own, or one on the PATH."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client

from ravi_django.models import Run
from tests.support import world
from tests.support.browser import elsewhere
from tests.support.patience import BOUND_S
from tests.support.world import Runtime

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.full]


@pytest.fixture
def open_page(live_server: Any, new_page: Callable[..., Any]) -> Callable[..., Any]:
    """`open_page(**options)`: the list of agents, with a superuser logged in."""
    elsewhere(world.bodies_forget)  # the database is empty again

    def opened(**options: Any) -> Any:
        page = new_page(live_server.url, elsewhere(get_user_model().objects.create_superuser, "admin"), **options)
        page.goto("/admin/ravi/agent/")
        return page

    return opened


def make_agent(page: Any) -> None:
    page.click("text=Add agent")
    page.fill("[name=address]", "support/sums")
    page.fill("[name=name]", "Sums")
    page.fill("[name=access]", "authenticated")
    page.fill("[name=model]", "rehearsal")
    page.fill("[name=system_instructions]", "You do sums for {{ user.username }}. Be {{ tone }}.")
    page.fill("[name=variables-0-name]", "tone")
    page.fill("[name=variables-0-default]", "brief")
    page.check("input[name=tool_names][value=calculator]")


async def drive(run_id: str) -> None:
    try:
        async with Runtime() as runtime:
            await runtime.result(run_id, timeout=BOUND_S)
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


@pytest.mark.gate
def test_an_agent_made_in_the_admin_answers_an_ordinary_user(open_page) -> None:
    page = open_page()
    make_agent(page)
    page.click("input[name=_preview]")
    page.wait_for_selector("#preview")
    assert page.inner_text("#preview pre >> nth=0") == "You do sums for admin. Be brief."
    page.click("input[name=_save]")
    page.wait_for_selector(".messagelist .success")

    answer, run = elsewhere(lambda: ask_over_rest("What is 17 * 23?"))

    assert answer["status"] == "completed" and "391" in answer["output"]
    assert run.agent_version == 1
    page.goto(f"/admin/ravi/run/{run.pk}/change/")
    assert "calculator" in page.inner_text("#lanes")
    page.click("#details summary")
    page.click("text=version 1")
    page.wait_for_selector("text=The first version")
