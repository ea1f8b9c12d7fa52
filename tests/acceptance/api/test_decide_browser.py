"""The page behind an e-mail's link in a browser without JavaScript. Needs a Chromium: Playwright's own, or one on the
PATH."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.urls import reverse

from tests.support import world
from tests.support.asked import approval_of, asked_by
from tests.support.browser import looks, new_page
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann(django_user_model: Any) -> Any:
    ann = django_user_model.objects.create_user("ann", "ann@example.com", "secret")
    ann.groups.add(Group.objects.create(name="finance"))
    return ann


def link_to(request: Any, user: Any) -> str:
    return reverse("ravi:decide", args=[world.token_of(request, user)])


def test_a_person_decides_without_javascript_and_by_the_keyboard(chromium: Any, live_server: Any, ann: Any) -> None:
    run = make_run()
    to = [("group:finance", 3600), "staff"]
    pay = approval_of(run, to, text="Pay the invoice 2026-118 of ACME?", details={"context": "<b>20 %</b> off."})
    door = asked_by(run, to="user:ann", text="Which colour should the door have?", choices=["red", "blue"])
    money, colour = (link_to(one, ann) for one in (pay, door))

    with chromium() as browser:
        page = new_page(browser, live_server.url, ann)
        for address in (money, colour):
            page.goto(address)
            assert [page.viewport_size["width"] for _ in looks(page, 390)] == [390] * 2
        page = new_page(browser, live_server.url, java_script_enabled=False)
        page.goto(money)
        assert settings.LOGIN_URL in page.url  # the site asks first who follows the link
        page.fill("input[name=username]", "ann")
        page.fill("input[name=password]", "secret")
        page.press("input[name=password]", "Enter")
        page.wait_for_selector("main h1")
        page.check("input[name=sticky]")
        page.press("input[name=sticky]", "Enter")
        assert "ress one of the buttons" in page.content() and page.is_checked("input[name=sticky]")
        page.press("button[value=approve]", "Enter")
        page.wait_for_selector("dl")
        page.goto(colour)
        page.press("text=blue", "Enter")
        page.wait_for_selector("dl")

    pay.refresh_from_db(), door.refresh_from_db()
    assert (pay.answer["action"], pay.answer["sticky"], pay.answered_by) == ("approve", True, ann)
    assert (door.answer["action"], door.answer["text"]) == ("answer", "blue")
