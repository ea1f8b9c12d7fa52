"""The inbox in a browser: by keyboard, with and without JavaScript, live, in both themes. Needs a Chromium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.staticfiles import finders

from ravi_django.models import HumanRequest
from tests.acceptance.ws.live_site import Server
from tests.support import world
from tests.support.browser import elsewhere, looks
from tests.support.inbox import INBOX, ask, page_of, person

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.full]


@pytest.fixture
def open_page(server: Server, new_page: Callable[..., Any]) -> Callable[..., Any]:
    """`open_page(user, address, **options)`: a page of the real site, sockets too."""

    def opened(user: Any, address: str, **options: Any) -> Any:
        page = new_page(server.url, user, **options)
        page.route(f"{server.url}/static/**", _static)
        page.goto(address)
        return page

    return opened


def _static(route: Any) -> None:
    """By file: Django warns of files over ASGI, and warnings are errors here."""
    route.fulfill(path=finders.find(urlsplit(route.request.url).path.removeprefix("/static/")))


@pytest.fixture
def fay(transactional_db: None) -> Any:
    """A member of the finance group."""
    return elsewhere(person, "fay", "finance")


@pytest.fixture
def request_(transactional_db: None) -> HumanRequest:
    found: HumanRequest = elsewhere(ask)
    return found


def kept(request: HumanRequest) -> HumanRequest:
    found: HumanRequest = elsewhere(lambda: HumanRequest.objects.get(pk=request.pk))
    return found


@pytest.mark.gate
def test_one_decides_by_keyboard_without_javascript(open_page: Any, fay: Any, request_: HumanRequest) -> None:
    page = open_page(fay, page_of(request_), java_script_enabled=False)

    page.focus("[name=decision-reason]")
    page.keyboard.type("The order is signed.")
    page.focus("[name=decision-sticky]")
    page.keyboard.press("Enter")  # presses a form's first button, which is not to approve
    page.wait_for_selector(".errornote")
    assert kept(request_).status == "pending"
    page.focus("[name=decision-reason]")
    order = []
    for _ in range(4):
        page.keyboard.press("Tab")
        order.append(
            page.locator("*:focus").get_attribute("name") + (page.locator("*:focus").get_attribute("value") or "")
        )
    assert order == ["decision-sticky", "actionapprove", "actiondeny", "actionedit"]
    assert kept(request_).status == "pending"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".messagelist .success")

    assert "Rejected" in page.inner_text(".messagelist")
    assert kept(request_).answer == {"action": "deny", "reason": "The order is signed.", "by": "fay"}


def test_a_letter_goes_to_its_button_and_decides_nothing(open_page: Any, fay: Any, request_: HumanRequest) -> None:
    page = open_page(fay, page_of(request_))
    page.wait_for_selector("[data-ravi-script-only]:visible")

    page.focus("[name=decision-reason]")
    page.keyboard.type("a r")
    assert page.input_value("[name=decision-reason]") == "a r"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("a")
    assert page.locator("*:focus").get_attribute("value") == "approve"
    page.keyboard.press("r")
    assert page.locator("*:focus").get_attribute("value") == "deny"
    assert kept(request_).status == "pending"
    assert not page.is_visible("button[value=skip]")
    page.keyboard.press("s")  # it is folded in until then
    assert page.locator("*:focus").get_attribute("value") == "skip" and page.is_visible("button[value=skip]")
    page.keyboard.press("r")
    page.keyboard.press("Enter")
    page.wait_for_selector(".messagelist .success")

    assert kept(request_).answer["action"] == "deny"
    assert page.errors + page.console == []


def test_the_list_and_its_number_live(open_page: Any, fay: Any, request_: HumanRequest) -> None:
    page = open_page(fay, INBOX)
    page.wait_for_selector("#ravi-badge")
    assert page.inner_text("#ravi-badge") == "1"
    assert page.get_attribute("#ravi-badge", "href") == INBOX
    assert page.inner_text("[data-ravi-list]") == ""

    second = elsewhere(ask)
    page.wait_for_selector("#ravi-badge:text-is('2')", state="attached")
    assert "1 new request." in page.inner_text("[data-ravi-list]")
    assert page.locator("#result_list tbody tr").count() == 1  # no row moves under the mouse
    page.click("[data-ravi-list] a")
    page.wait_for_selector("#result_list tbody:has(tr:nth-child(2)):not(:has(tr:nth-child(3)))")
    elsewhere(lambda: [world.answer(request.pk, "deny") for request in (request_, second)])
    page.wait_for_selector("#ravi-badge", state="detached")

    assert page.errors + page.console == []


def test_the_page_tells_when_somebody_else_decides(open_page: Any, fay: Any, request_: HumanRequest) -> None:
    page = open_page(fay, page_of(request_))
    page.wait_for_selector("#ravi-badge")
    page.fill("[name=decision-reason]", "I was about to")

    elsewhere(lambda: world.answer(request_.pk, "deny", by=person("gus", "finance")))
    page.wait_for_selector("[data-ravi-request]:has-text('gus')")
    assert page.input_value("[name=decision-reason]") == "I was about to"
    page.click("button[value=approve]")
    page.wait_for_selector(".errornote")

    assert "gus decided first" in page.inner_text(".errornote")
    assert "I was about to" in page.inner_text("#typed")
    assert kept(request_).answer["action"] == "deny"


def test_the_script_speaks_the_language_of_the_page(open_page, fay, request_, settings) -> None:
    settings.LANGUAGE_CODE = "de"
    page = open_page(fay, INBOX)
    page.wait_for_selector("#ravi-badge")
    assert page.get_attribute("#ravi-badge", "aria-label") == "1 Anfrage zu beantworten"

    elsewhere(ask)
    page.wait_for_selector("#ravi-badge:text-is('2')", state="attached")

    assert page.get_attribute("#ravi-badge", "aria-label") == "2 Anfragen zu beantworten"
    assert page.inner_text("[data-ravi-list]") == "1 neue Anfrage. Liste neu laden"


def test_all_of_a_row_is_within_what_one_sees(open_page: Any, fay: Any) -> None:
    steps = [("group:finance", 3600), "group:directors"]
    long = {"customer": "Muster & Söhne Verwaltungsgesellschaft mbH " * 3, "iban": "DE89" * 9}
    elsewhere(lambda: [person("dora", "directors"), ask(to=steps, arguments=long), ask("question", text="Why? " * 60)])
    page = open_page(fay, INBOX)
    page.wait_for_selector("#ravi-badge")

    for _, width in looks(page, 1280, 400, part="#result_list"):
        _assert_within(page, width)


def _assert_within(page: Any, width: int) -> None:
    cells = "[...document.querySelectorAll('#result_list tbody :is(td, th)')]"
    edges = f"{cells}.map(cell => cell.getBoundingClientRect().right)"
    results = "document.querySelector('.results')"
    assert max(page.evaluate(edges)) <= width
    assert page.evaluate(f"{results}.scrollWidth <= {results}.clientWidth + 1")
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
    assert page.locator(".field-age").first.is_visible() and page.locator(".field-asked_of").first.is_visible()
    link = page.evaluate("getComputedStyle(document.querySelector('.field-asked a')).color")
    assert page.evaluate("getComputedStyle(document.querySelector('.ravi-asked')).color") == link
