"""The chat page: who may open it, and what it offers. test_chat_browser.py has it in a browser."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation

import ravi_django
from ravi_django import urls
from ravi_django.access import AccessPolicy
from ravi_django.models import Agent
from tests.acceptance.api.api_support import AGENT
from tests.support.world import save_spec, submit

pytestmark = pytest.mark.django_db


class Nothing(AccessPolicy):
    def may_see_agent(self, user: Any, agent: Any) -> bool:
        return False


@pytest.fixture
def browser(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_stranger_goes_to_the_login_and_comes_back(settings: Any) -> None:
    for page in ("/ravi/", "/ravi/ui/chat/", "/ravi/ui/panel/", "/ravi/ui/nothing/"):
        response = Client().get(page)
        assert (response.status_code, response["Location"].endswith(f"?next={page}")) == (302, True)


def test_a_conversation_opens_for_its_owner_alone(browser: Client, stranger: Any, agent: str, user: Any) -> None:
    page = f"/ravi/ui/chat/{submit(AGENT, 'hi', user=user).session_id}/"
    other = Client()
    other.force_login(stranger)

    assert browser.get("/ravi/", follow=True).status_code == 200
    own, strange = browser.get(page), other.get(page)

    assert (own.status_code, strange.status_code, strange["Content-Type"]) == (200, 404, "text/html; charset=utf-8")
    assert 'href="/ravi/ui/chat/"' in strange.content.decode()
    assert AGENT in own.content.decode()


def test_a_panel_has_the_agent_for_those_who_may_run_it(browser: Client, agent: str) -> None:
    save_spec("zoo/keeper", {"model": "rehearsal", "system_instructions": "You help."})
    panel = "/ravi/ui/panel/?agent=zoo/keeper"

    assert "zoo/keeper" not in browser.get(panel).content.decode()
    Agent.objects.update(access="authenticated")
    assert "zoo/keeper" in browser.get(panel).content.decode()


def test_the_number_of_queries_does_not_depend_on_the_agents(browser, agent, django_assert_num_queries) -> None:
    browser.get("/ravi/ui/chat/")
    with CaptureQueriesContext(connection) as few:
        browser.get("/ravi/ui/chat/")
    spec = {"model": "rehearsal", "system_instructions": "You help."}
    for name in ("aid/one", "aid/two", "aid/three"):
        save_spec(name, spec)
    Agent.objects.update(access="authenticated")

    with django_assert_num_queries(len(few)):
        page = browser.get("/ravi/ui/chat/").content.decode()

    assert "aid/three" in page


def test_a_conversation_begins_with_the_agent_of_the_last_one(browser: Client, agent: str, user: Any) -> None:
    spec = {"model": "rehearsal", "system_instructions": "You help."}
    save_spec("zoo/keeper", spec)
    Agent.objects.update(access="authenticated")

    assert not any(one["chosen"] for one in browser.get("/ravi/ui/chat/").context["agents"])

    for address in (AGENT, "zoo/keeper", AGENT):
        submit(address, "hi", user=user)
        (chosen,) = (one["address"] for one in browser.get("/ravi/ui/chat/").context["agents"] if one["chosen"])
        assert chosen == address
    (linked,) = (one for one in browser.get("/ravi/ui/chat/?agent=zoo/keeper").context["agents"] if one["chosen"])
    assert linked["address"] == "zoo/keeper"


def test_staff_read_why_no_socket_opens_and_runserver_has_none(admin_user, agent, settings, monkeypatch) -> None:
    def chat(client: Any) -> tuple[str, ...]:
        client.force_login(admin_user)
        get = async_to_sync(client.get) if isinstance(client, AsyncClient) else client.get
        html = get("/ravi/ui/chat/").content.decode()
        return tuple((re.findall(f'data-{name}="(.*?)"', html) or [""])[0] for name in ("polled", "sockets"))

    assert chat(Client()) == ("This site has no ASGI process for live text, so it arrives in pieces.", "/ws/ravi/")
    settings.DEBUG = True
    assert chat(Client()) == ("", "/ws/ravi/")
    assert "Route ravi_django.routing.websocket_urlpatterns" in chat(AsyncClient())[0]
    monkeypatch.setattr(sys, "argv", ["manage.py", "runserver", "--noreload"])
    assert chat(Client()) == ("", "")


def test_a_user_who_may_run_no_agent_reads_what_to_add(browser: Client, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": f"{__name__}.Nothing"}

    html = browser.get("/ravi/ui/chat/").content.decode()

    assert "register(ReActAgent(" in html and "composer" not in html


def test_a_site_without_pages_has_the_api_alone(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "PAGES": False}
    try:
        names = {pattern.name for pattern in importlib.reload(urls).urlpatterns}
    finally:
        settings.RAVI = {**settings.RAVI, "PAGES": True}
        importlib.reload(urls)

    assert {"run-list", "panel"} <= names and not names & {
        "home",
        "chat",
        "chat-session",
        "dashboard",
        "run-page",
        "run-export",
        "no-page",
    }


def test_each_text_of_the_scripts_has_a_german_one(browser: Client) -> None:
    scripts = Path(ravi_django.__file__).parent.glob("static/ravi/**/*.js")
    said = {text for script in scripts for text in re.findall(r'\bt\("([^"]+)"', script.read_text())}

    with translation.override("de"):
        words = browser.get("/ravi/ui/chat/", headers={"accept-language": "de"}).context["words"]

    assert len(said) > 40 and said <= set(words)
    assert [text for text in words if words[text] == text] == []
