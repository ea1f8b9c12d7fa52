"""The page of a run in a browser: it follows the run, finds entries and acts on it. Needs a Chromium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from ravi_django import register, signal
from ravi_django.models import HumanRequest, Run
from tests.support.asked import Kind, asked_by
from tests.support.browser import elsewhere, looks
from tests.support.inbox import person
from tests.support.journals import long
from tests.support.runs import CodeAgent, make_run

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # of the static files' middleware
    pytest.mark.full,
]


@pytest.fixture
def waiting() -> str:
    """An agent that waits for two signals."""

    async def story(ctx: Any, inbox: Any) -> Any:
        for name in ("go", "stop"):
            await ctx.sleep_until_signal(name)

    agent = CodeAgent(story, key="browser-waits")
    agent.public_signals = ("go", "stop")  # type: ignore[attr-defined]
    return str(register(agent).id)


@pytest.fixture
def page_of(server: Any, worker: Any, new_page: Callable[..., Any]) -> Callable[..., Any]:
    """`page_of(user, run, address="")`: the page of a run, with that user logged in."""

    def opened(user: Any, run: Run, address: str = "") -> Any:
        page = new_page(server.url, user)
        page.goto(f"/ravi/ui/runs/{run.id}/{address}")
        return page

    return opened


def state_of(page: Any, state: str) -> None:
    page.wait_for_selector(f".head .state.{state}")


@pytest.mark.gate
def test_a_live_run_is_followed_searched_signalled_forked_and_cancelled(demo, submitted, waiting, page_of) -> None:
    run = elsewhere(submitted, waiting)
    page = page_of(demo, run)
    state_of(page, "suspended")
    page.wait_for_selector(".lane:has-text('waits for signal go') .state.waiting")

    page.click("text=Send a signal…")
    page.fill("dialog [name=name]", "secret")
    page.click("dialog[open] button:text-is('Send')")
    page.wait_for_selector("dialog[open] .fault:has-text('public_signals')")
    page.fill("dialog [name=name]", "go")
    page.click("dialog[open] button:text-is('Send')")
    page.wait_for_selector(".lane:has-text('waits for signal stop') .state.waiting")
    assert page.locator("dialog[open], .lane:has-text('signal go') .state").count() == 0

    page.fill("#q", "stop")
    page.wait_for_selector(".lane:has-text('signal go')", state="detached")
    assert page.locator(".lane.wait").count() == 1 and "q=stop" in page.url
    page.focus(".lane.run a")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail h2:text-is('run.suspended')")
    assert "entry=" in page.url
    page.click("text=Fork before this…")
    page.click("dialog[open] button:text-is('Fork')")
    page.wait_for_url(lambda url: str(run.id) not in url)
    page.wait_for_selector(".lane:has-text('waits for signal stop') .state.waiting")
    page.go_back()

    page.focus("text=Cancel…")
    elsewhere(lambda: Run.objects.filter(id=run.id).update(cost=1, input_tokens=7))
    page.wait_for_selector(".sums:has-text('$1')")
    assert page.evaluate("document.activeElement.dataset.act") == "cancel"  # what changed is around it
    page.keyboard.press("Enter")
    page.click("dialog[open] button:text-is('Keep it')")
    page.click("text=Cancel…")
    page.fill("dialog[open] [name=reason]", "no longer needed")
    page.click("dialog[open] button:text-is('Cancel the run')")
    state_of(page, "cancelled")
    assert page.locator("#head [data-act]").count() == 0 and "no longer needed" in page.inner_text("#head")
    refused = [said for said in page.console if "403" not in said]  # of the signal that is not public
    assert (page.errors, refused) == ([], [])


def test_a_failed_run_is_retried_and_its_question_answered_in_place(demo, submitted, page_of) -> None:
    fails = [True]

    async def story(ctx: Any, inbox: Any) -> Any:
        if fails:
            raise ValueError("<b>not yet</b>")
        return (await ctx.ask_human("Which colour?", ["red", "blue"]))["text"]

    agent = register(CodeAgent(story, key="browser-retried"))
    run = elsewhere(submitted, str(agent.id))
    page = page_of(demo, run)
    page.wait_for_selector("#head .fault:has-text('<b>not yet</b>')")
    fails.clear()
    page.click("text=Retry")
    page.click(".request button:text-is('red')")
    state_of(page, "completed")
    assert "Answered by demo: red" in page.inner_text("#asks")
    assert elsewhere(lambda: HumanRequest.objects.get(run=run).answer["by"]) == "demo"


def test_without_sockets_the_page_asks_for_news(demo, submitted, waiting, worker, server, new_page) -> None:
    run = elsewhere(submitted, waiting)
    page = new_page(server.url, demo)
    refused = (
        "window.WebSocket = class { constructor() { setTimeout(() => this.onclose({ code: 1006 })); } close() {} }"
    )
    page.add_init_script(refused)
    page.goto(f"/ravi/ui/runs/{run.id}/")
    page.wait_for_selector("#banner:has-text('repeatedly')")

    elsewhere(signal, run.id, "go")
    elsewhere(signal, run.id, "stop")

    state_of(page, "completed")
    page.wait_for_selector("#banner", state="hidden")
    assert (page.errors, page.console) == ([], [])


def test_an_uncertain_call_is_resolved_in_place(demo, page_of, settings) -> None:
    settings.CSRF_COOKIE_HTTPONLY = True  # scripts cannot read it
    run = elsewhere(lambda: make_run("test/nobodys", owner=demo, status="suspended"))
    request = elsewhere(lambda: asked_by(run, Kind.UNCERTAIN, "owner", tool="send"))
    page = page_of(demo, run)

    page.fill(".request input", '{"id": 7}')
    page.click(".request button:text-is('It happened')")

    page.wait_for_selector(".request .state:text-is('Decided by demo.')")
    answer = elsewhere(lambda: HumanRequest.objects.get(id=request.id).answer)
    assert (answer["outcome"], answer["result"]) == ("happened", {"id": 7})


def test_a_journal_of_5000_rows_opens_with_its_beginning_and_loads_the_rest(demo, page_of) -> None:
    boss = elsewhere(lambda: get_user_model().objects.create_superuser("boss"))
    run = elsewhere(lambda: make_run(owner=demo))
    elsewhere(long, run, 5000)
    page = page_of(boss, run)

    assert page.locator(".lane").count() < 310 and "300 of 5,001 rows" in page.inner_text("#more").replace(
        "5001", "5,001"
    )
    page.locator("#more").scroll_into_view_if_needed()
    page.wait_for_selector(".lane >> nth=500")
    page.fill("#q", "answer 4321 of")
    page.wait_for_selector("#more:has-text('2 of 2 rows')")

    for _, width in looks(page, 390, 1280):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (page.errors, page.console) == ([], [])


def test_an_operator_follows_and_cancels_the_run_of_another_user(demo, submitted, waiting, worker, server, new_page):
    run = elsewhere(submitted, waiting)
    operator = elsewhere(lambda: person("olga", may=("view_run", "change_run")))
    page = new_page(server.url, operator)
    page.goto(f"/admin/ravi/run/{run.id}/change/")
    state_of(page, "suspended")
    assert "demo" in page.inner_text(".sums") and page.locator("a:text-is('Conversation')").count() == 0

    page.click("text=Cancel…")
    page.fill("dialog[open] [name=reason]", "too late")
    page.click("dialog[open] button:text-is('Cancel the run')")

    state_of(page, "cancelled")
    assert elsewhere(lambda: Run.objects.get(id=run.id).cancel_reason) == "too late"
    assert page.is_hidden("#banner") and (page.errors, page.console) == ([], [])
