"""The inbox in a browser: by keyboard, with and without JavaScript, live, in both themes. Needs a Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.staticfiles import finders

from ravi_django.models import HumanRequest
from ravi_django.runtime import human
from ravi_django.runtime.database import forget_readers
from tests.acceptance.admin.test_agent_browser import _contrast, _launch, in_thread
from tests.acceptance.ws.live_site import Server
from tests.support.inbox import INBOX, ask, logged_in, page_of, person

pytestmark = pytest.mark.django_db(transaction=True)
SHOTS = os.environ.get("RAVI_SHOTS", "")  # a folder to look at


@pytest.fixture
def open_page(transactional_db: None) -> Iterator[Any]:
    """`open_page(session, address, **options)`: a page of the real site, sockets too; what the browser complains of is
    in `page.complaints`."""
    api = pytest.importorskip("playwright.sync_api")
    server = Server()
    server.start()
    site = f"http://127.0.0.1:{server.port}"
    with api.sync_playwright() as playwright:
        browser = _launch(playwright, api.Error)

        def opened(session: str, address: str, **options: Any) -> Any:
            context = browser.new_context(**options)
            context.add_cookies([{"name": "sessionid", "value": session, "url": site}])
            page = context.new_page()
            page.set_default_timeout(15_000)
            page.complaints = []
            page.on("console", lambda told: page.complaints.append(told.text) if told.type == "error" else None)
            page.on("pageerror", lambda error: page.complaints.append(str(error)))
            page.route(f"{site}/static/**", _static)
            page.goto(f"{site}{address}")
            return page

        yield opened
        browser.close()
    server.stop()
    forget_readers(close=True)


def _static(route: Any) -> None:
    """By file: Django warns of files over ASGI, and warnings are errors here."""
    route.fulfill(path=finders.find(urlsplit(route.request.url).path.removeprefix("/static/")))


@pytest.fixture
def fay(transactional_db: None) -> str:
    """Of the finance group; the session of her browser."""
    return str(in_thread(lambda: logged_in(person("fay", "finance")).cookies["sessionid"].value))


@pytest.fixture
def request_(transactional_db: None) -> HumanRequest:
    found: HumanRequest = in_thread(ask)
    return found


def shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def kept(request: HumanRequest) -> HumanRequest:
    found: HumanRequest = in_thread(lambda: HumanRequest.objects.get(pk=request.pk))
    return found


def test_one_decides_by_keyboard_without_javascript(open_page: Any, fay: str, request_: HumanRequest) -> None:
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

    assert "Denied" in page.inner_text(".messagelist")
    assert kept(request_).answer == {"action": "deny", "reason": "The order is signed.", "by": "fay"}


def test_a_letter_goes_to_its_button_and_decides_nothing(open_page: Any, fay: str, request_: HumanRequest) -> None:
    page = open_page(fay, page_of(request_))
    page.wait_for_selector("[data-ravi-script-only]:visible")

    page.focus("[name=decision-reason]")
    page.keyboard.type("a d")
    assert page.input_value("[name=decision-reason]") == "a d"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("a")
    assert page.locator("*:focus").get_attribute("value") == "approve"
    page.keyboard.press("d")
    assert page.locator("*:focus").get_attribute("value") == "deny"
    assert kept(request_).status == "pending"
    page.keyboard.press("Enter")
    page.wait_for_selector(".messagelist .success")

    assert kept(request_).answer["action"] == "deny"
    assert page.complaints == []


def test_several_are_approved_from_the_list(open_page: Any, fay: str) -> None:
    requests = in_thread(lambda: [ask() for _ in range(3)])
    page = open_page(fay, INBOX)

    page.check("#action-toggle")
    page.select_option("select[name=action]", "approve_selected")
    page.click("button[name=index]")
    page.fill("[name=reason]", "all of them are signed")
    page.click("button:has-text('Approve all 3')")
    page.wait_for_selector(".messagelist .success")

    assert {kept(request).answer["reason"] for request in requests} == {"all of them are signed"}


def test_the_list_and_its_number_live(open_page: Any, fay: str, request_: HumanRequest) -> None:
    page = open_page(fay, INBOX)
    page.wait_for_selector("#ravi-badge")
    assert page.inner_text("#ravi-badge") == "1"
    assert page.get_attribute("#ravi-badge", "href") == INBOX
    assert page.inner_text("[data-ravi-list]") == ""

    second = in_thread(ask)
    page.wait_for_function("document.getElementById('ravi-badge').textContent === '2'")
    assert "1 new request." in page.inner_text("[data-ravi-list]")
    assert page.locator("#result_list tbody tr").count() == 1  # no row moves under the mouse
    page.click("[data-ravi-list] a")
    page.wait_for_function("document.querySelectorAll('#result_list tbody tr').length === 2")
    in_thread(lambda: [human.answer(request.pk, "deny") for request in (request_, second)])
    page.wait_for_selector("#ravi-badge", state="detached")

    assert page.complaints == []


def test_the_page_tells_when_somebody_else_decides(open_page: Any, fay: str, request_: HumanRequest) -> None:
    page = open_page(fay, page_of(request_))
    page.wait_for_selector("#ravi-badge")
    page.fill("[name=decision-reason]", "I was about to")

    in_thread(lambda: human.answer(request_.pk, "deny", by=person("gus", "finance")))
    page.wait_for_function("document.querySelector('[data-ravi-request]').textContent.includes('gus')")
    assert page.input_value("[name=decision-reason]") == "I was about to"
    page.click("button[value=approve]")
    page.wait_for_selector(".errornote")

    assert "gus was first" in page.inner_text(".errornote")
    assert "I was about to" in page.inner_text("#typed")
    assert kept(request_).answer["action"] == "deny"


def test_other_pages_of_the_app_tell_the_number_too(open_page: Any, fay: str, request_: HumanRequest) -> None:
    page = open_page(fay, "/admin/ravi/")

    page.wait_for_selector("#ravi-badge")

    assert page.get_attribute("#ravi-badge", "aria-label") == "1 request to answer"
    assert page.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_can_be_read_in_both_themes_and_on_a_phone(
    open_page: Any, fay: str, request_: HumanRequest, scheme: str, width: int
) -> None:
    page = open_page(fay, page_of(request_), color_scheme=scheme, viewport={"width": width, "height": 900})
    page.wait_for_selector("#ravi-badge")

    for selector in (
        "#arguments",
        "[name=decision-reason]",
        "button[value=approve]",
        "button[value=deny]",
        "#ravi-badge",
    ):
        assert _contrast(page, selector) >= 4.5, selector
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
    shot(page, f"request_{scheme}_{width}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_all_of_a_row_is_within_what_one_sees(open_page: Any, fay: str, scheme: str, width: int) -> None:
    steps = [("group:finance", 3600), "group:directors"]
    long = {"customer": "Muster & Söhne Verwaltungsgesellschaft mbH " * 3, "iban": "DE89" * 9}
    in_thread(lambda: [person("dora", "directors"), ask(to=steps, arguments=long), ask("question", text="Why? " * 60)])
    page = open_page(fay, INBOX, color_scheme=scheme, viewport={"width": width, "height": 900})
    page.wait_for_selector("#ravi-badge")

    shot(page, f"inbox_{scheme}_{width}")
    cells = "[...document.querySelectorAll('#result_list tbody :is(td, th)')]"
    edges = f"{cells}.map(cell => cell.getBoundingClientRect().right)"
    results = "document.querySelector('.results')"
    assert max(page.evaluate(edges)) <= width
    assert page.evaluate(f"{results}.scrollWidth <= {results}.clientWidth + 1")
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
    assert page.locator(".field-age").first.is_visible() and page.locator(".field-asked_of").first.is_visible()
    link = page.evaluate("getComputedStyle(document.querySelector('.field-asked a')).color")
    assert page.evaluate("getComputedStyle(document.querySelector('.ravi-asked')).color") == link


def test_a_letter_opens_what_its_button_is_folded_in(open_page: Any, fay: str, request_: HumanRequest) -> None:
    page = open_page(fay, page_of(request_))
    page.wait_for_selector("#ravi-badge")
    assert not page.is_visible("button[value=skip]")

    page.keyboard.press("s")

    assert page.locator("*:focus").get_attribute("value") == "skip" and page.is_visible("button[value=skip]")
