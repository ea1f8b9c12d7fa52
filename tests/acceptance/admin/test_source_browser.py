"""A webhook made in a browser, its secret read off the page and used. Needs a Chromium."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.capabilities.feeds.signatures import sign
from ravi_django.models import Run, Source, SourceItem
from ravi_django.testing import ScriptedModel
from tests.support.browser import elsewhere
from tests.support.world import secrets_of

pytestmark = pytest.mark.django_db(transaction=True)

EVIL = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def page(live_server: Any, new_page: Callable[..., Any]) -> Iterator[Any]:
    """The list of sources, with a superuser logged in; an error on the page fails the test."""
    register(ReActAgent("reader", model=ScriptedModel([])))
    page = new_page(live_server.url, elsewhere(get_user_model().objects.create_superuser, "admin"))
    page.goto("/admin/ravi/source/")
    yield page
    assert page.errors == []


def test_a_webhook_is_made_and_its_secret_is_seen_once(page: Any, live_server: Any) -> None:
    import httpx

    page.click("text=Add source")
    page.fill("[name=name]", EVIL)
    page.select_option("[name=kind]", "webhook")
    page.select_option("[name=agent]", "react/reader")
    page.fill("[name=location]", "https://example.com")
    page.click("input[name=_save]")
    said = page.inner_text(".errorlist >> nth=0") + page.inner_text("#content-main")
    assert "Leave it empty" in said
    page.fill("[name=location]", "")
    page.click("input[name=_save]")
    assert "There is none yet" in page.inner_text("#content-main")

    page.click("input[name=make]")

    address, secret = page.inner_text("#hook-address"), page.inner_text("#hook-secret")
    assert address.startswith(f"{live_server.url}/ravi/sources/") and len(secret) > 30
    body = b'{"id": 1, "title": "<script>alert(1)</script>", "url": "https://example.com/1"}'
    headers = {"X-Ravi-Signature": sign(secret, body, int(time.time()))}
    assert httpx.post(address, content=body, headers=headers).json() == {"items": 1, "new": 1}
    page.click("text=It is kept, go on")
    assert secret not in page.content() and "one" in page.inner_text(".field-secret_state")
    page.goto("/admin/ravi/source/")
    row = page.inner_text("#result_list tbody tr")
    assert EVIL in row and "ok" in row and "owned" not in page.title()
    page.goto("/admin/ravi/sourceitem/")
    assert "<script>alert(1)</script>" in page.inner_text("#result_list")
    link = page.locator("#result_list a[href='https://example.com/1']")
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    source, count = elsewhere(lambda: (Source.objects.select_related("owner").get(), SourceItem.objects.count()))
    assert (source.owner.username, secrets_of(source), count) == ("admin", [secret], 1)
    assert elsewhere(Run.objects.count) == 1
