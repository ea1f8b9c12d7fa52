"""A single-page app on another origin, as docs/reference/settings.md shows it, in a browser. Needs a Chromium."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.staticfiles import finders
from django.core.asgi import get_asgi_application
from rest_framework.authtoken.models import Token
from starlette.middleware.cors import CORSMiddleware

from tests.support import world
from tests.support.browser import elsewhere
from tests.support.docs import Page
from tests.support.patience import BOUND_S

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.full]

SETTINGS, SCRIPT = re.search(
    r"A single-page app on another origin.*?\n\n((?: {4}[^\n]*\n)+)\n```js\n(.*?)```", Page("settings").text, re.DOTALL
).groups()
EVENTS = re.search(r"```js\n(const headers = .*?)```", Page("settings").text, re.DOTALL).group(1)
METHODS = ["DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT"]  # and headers: the defaults of django-cors-headers
HEADERS = ["accept", "authorization", "content-type", "user-agent", "x-csrftoken", "x-requested-with"]
LISTEN = """
    const heard = [];
    return await new Promise(done => {
        socket.onmessage = event => heard.push(JSON.parse(event.data).type);
        socket.onclose = event => done([answer.status, event.code, heard.at(-1)]);
    });
"""


@pytest.mark.parametrize("trusted", [True, False])
def test_it_logs_in_calls_and_listens(server, worker, new_page, settings, monkeypatch, trusted: bool) -> None:
    said: dict[str, Any] = {}
    exec(dedent(here(server.port, SETTINGS)), said)
    settings.ALLOWED_HOSTS = [".site.test"]
    settings.CSRF_TRUSTED_ORIGINS = said["CSRF_TRUSTED_ORIGINS"] if trusted else []
    settings.CSRF_COOKIE_DOMAIN = said["CSRF_COOKIE_DOMAIN"]
    site = CORSMiddleware(  # what the two settings stand for
        get_asgi_application(), said["CORS_ALLOWED_ORIGINS"], METHODS, HEADERS, said["CORS_ALLOW_CREDENTIALS"]
    )
    monkeypatch.setitem(server.application.application_mapping, "http", site)
    elsewhere(lambda: get_user_model().objects.create_user("demo", password="of-the-docs"))
    page = new_page(f"http://app.site.test:{server.port}")
    page.goto("/ravi/nothing/")

    script = f"async ({{username, password}}) => {{{here(server.port, SCRIPT)}{LISTEN}}}"
    heard = page.evaluate(script, {"username": "demo", "password": "of-the-docs"})

    assert heard == ([201, 1000, "stream.done"] if trusted else [401, 4401, None])
    if trusted:
        page.route("**/ravi-client.js", lambda route: route.fulfill(path=finders.find("ravi/ravi-client.js")))
        client = "new (await import('/ravi-client.js')).Client(site)"
        run = f"async site => await {client}.run('react/assistant', 'hi')"
        assert page.evaluate(run, f"http://site.test:{server.port}/ravi/")["status"] == "completed"


def here(port: int, text: str) -> str:
    """The addresses of the docs as those of the running site."""
    with_ports = re.sub(r"http(s?)://([\w.]*)example\.com", rf"http://\2site.test:{port}", text)
    return with_ports.replace("wss://example.com", f"ws://site.test:{port}").replace("example.com", "site.test")


def test_an_event_source_reconnects_with_its_ticket(server, worker, paced, new_page, settings, monkeypatch) -> None:
    settings.ALLOWED_HOSTS = ["site.test", "127.0.0.1"]
    shared = CORSMiddleware(get_asgi_application(), [server.url], METHODS, HEADERS)
    monkeypatch.setitem(server.application.application_mapping, "http", shared)
    user = elsewhere(lambda: get_user_model().objects.create_user("demo"))
    token = elsewhere(lambda: Token.objects.create(user=user).key)
    run = elsewhere(lambda: str(world.submit("react/paced", "hi", user=user).id))
    page = new_page(server.url)
    page.goto("/ravi/nothing/")

    page.evaluate(
        f"async ({{site, token, run}}) => {{window.heard = []; const show = text => heard.push(text); {EVENTS}"
        "window.events = events;}",
        {"site": f"http://site.test:{server.port}", "token": token, "run": run},
    )
    paced.let(2)
    page.wait_for_function("heard.length > 0")
    for open_stream in world.streams_open[server.loop]:
        open_stream.revoked = True  # the next frame ends the stream
    paced.let_all()
    page.wait_for_function("events.readyState == 2", timeout=BOUND_S * 1000)  # it closes after stream.done

    assert page.evaluate("heard.join('')") == "".join(paced.words)
