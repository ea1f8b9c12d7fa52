"""The pages at `docs/` in a browser. Needs a Chromium: Playwright's own, or one on the PATH."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from tests.support.browser import new_page

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.full]


def test_both_pages_show_the_calls_and_a_call_is_tried(chromium: Any, live_server: Any, django_user_model: Any) -> None:
    client = Client()
    client.force_login(django_user_model.objects.create_user("ann"))
    cookie = client.cookies[settings.SESSION_COOKIE_NAME].value

    with chromium() as browser:
        page = new_page(browser, live_server.url)
        page.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": live_server.url}])
        asked: list[str] = []
        page.on("requestfinished", lambda request: asked.append(request.url))
        page.goto(f"{live_server.url}/ravi/docs/")
        page.click("#operations-sessions-sessions_list .opblock-summary-control")
        page.click("#operations-sessions-sessions_list .try-out__btn")
        page.click("#operations-sessions-sessions_list .execute")
        page.wait_for_selector('#operations-sessions-sessions_list .live-responses-table :text("results")')
        page.goto(f"{live_server.url}/ravi/docs/redoc/")
        page.wait_for_selector('h2:has-text("Start a run.")', state="attached")

    assert {url for url in asked if not url.startswith((live_server.url, "data:", "blob:"))} == set()
