"""Pages with what made them break once: in both themes, on a desktop and a phone, nothing lies over its neighbours or
sticks out of the window, and axe-core, which computes contrasts, finds nothing serious. Needs a Chromium."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse
from django.utils import timezone

from ravi_django import register, schedule, tool
from ravi_django.agents import ReActAgent
from ravi_django.models import BudgetAccount, Run, ScheduleTick, Session
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.acceptance.api.api_support import client_of
from tests.support import world
from tests.support.asked import approval_of
from tests.support.browser import elsewhere, looks, misplaced
from tests.support.journals import rows_of
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, make_run

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # of the static files' middleware
    pytest.mark.full,
]
LONG = "What is 12 * (3 + 4)? " + "Take your time, and explain each step. " * 6


def page_of(model: str, key: Any) -> str:
    return reverse(f"admin:ravi_{model}_change", args=[key])


def answered(boss: Any) -> Run:
    """A run with a call of a tool and its answer, in a conversation with a second version."""

    @tool
    def echo(text: str) -> str:
        """Say it again."""
        return text

    agent = register(ReActAgent("long-name-" * 9, model=ScriptedModel(["Eighty-four. " * 40] * 9), tools=[echo]))
    run = world.submit(agent.id, LONG, user=boss)
    run_until_idle()
    client_of(boss).post(f"/ravi/runs/{run.id}/fork/", {"input": "What is **6 * 7**?"}, format="json")
    run_until_idle()
    return run


def versions(boss: Any) -> tuple[str, str]:
    stranger = get_user_model().objects.create_user("stranger")
    Session.objects.create(owner=stranger, title="Not mine", agent="react/assistant")
    return f"/ravi/ui/chat/{answered(boss).session_id}/", ".message-bar:has-text('1/2')"


def prompt(boss: Any) -> tuple[str, str]:
    run = answered(boss)
    (call,) = run.journal.filter(kind="llm.call")
    return f"/ravi/ui/runs/{run.id}/?entry={run.id}.{call.seq}", "summary:has-text('Show what was sent')"


def lost(boss: Any) -> tuple[str, str]:
    run = make_run(owner=boss, text=LONG)
    after = run.created_at + timedelta(seconds=50)
    rows_of(
        run,
        (11, 11, {"kind": "run.started", "result": {"worker": "w1"}}),
        (11, 16, {"kind": "tool.call", "name": "pay", "path": "1"}),
        (51, 51, {"kind": "run.resumed", "epoch": 2, "result": {"worker": "w2", "after": after.isoformat()}}),
        (51, 61, {"kind": "llm.call", "name": "gpt", "path": "2", "epoch": 2, "cost": "0.0021"}),
    )
    Run.objects.filter(id=run.id).update(status="completed", finished_at=run.created_at + timedelta(seconds=61))
    return f"/ravi/ui/runs/{run.id}/", ".lane:has-text('worker lost') .num:text-is('unknown')"


def failed(boss: Any) -> tuple[str, str]:
    async def story(ctx: Any, inbox: Any) -> Any:
        raise ValueError("no-space-" * 30)

    run = world.submit(register(CodeAgent(story, key="fails")).id, "hi", user=boss)
    run_until_idle()
    return (
        f"/ravi/ui/chat/{run.session_id}/",
        ".ravi-error .details:has-text('ValueError')",
    )


def silent(boss: Any) -> tuple[str, str]:
    run = make_run(owner=boss, session=world.create_session(Session(owner=boss, agent="test/code")))
    Run.objects.filter(id=run.id).update(
        status="running",
        started_at=timezone.now(),
        lease_owner="w1",
        lease_expires_at=timezone.now() + timedelta(seconds=2),
    )
    return f"/ravi/ui/chat/{run.session_id}/", "#status:has-text('No sign of the worker for')"


def ticks(boss: Any) -> tuple[str, str]:
    row = schedule("react/assistant", LONG, name="daily", cron="0 9 * * MON-FRI", timezone="Asia/Kathmandu", user=boss)
    for hours in range(3):
        ScheduleTick.objects.create(schedule=row, at=timezone.now() - timedelta(hours=hours), error="no run")
    return page_of("schedule", row.pk), "#recent"


def decided(boss: Any) -> tuple[str, str]:
    for _ in range(2):
        request = approval_of(make_run(owner=boss, text=LONG))
        world.answer(request, "approve", by=None)
    return reverse("admin:ravi_humanrequest_changelist") + "?status=answered", ".field-asked:has-text('“What is 12')"


def asked(boss: Any) -> tuple[str, str]:
    return page_of("humanrequest", approval_of(make_run(owner=boss, text=LONG)).pk), "#input:has-text('What is 12')"


def audited(boss: Any) -> tuple[str, str]:
    world.answer(approval_of(make_run(owner=boss)), "deny", by=None)
    return reverse("admin:ravi_auditrecord_changelist"), "text=rejected pay(to=ACME, amount=100)"


def listed(boss: Any) -> tuple[str, str]:
    make_run(owner=boss, text=LONG)
    return reverse("admin:ravi_run_changelist"), ".field-run:has-text('What is 12')"


def operated(boss: Any) -> tuple[str, str]:
    """Another user's run, with all that an operator reads of it."""
    run = make_run("support/orders", text=LONG, metadata={"order": LONG}, agent_version=3, release="2026-11-29")
    BudgetAccount.objects.create(key=f"tree:{run.id}", max_tokens=5000, spent_tokens=1234, spent_cost=Decimal("0.25"))
    return f"/ravi/ui/runs/{run.id}/", "text=version 3 (agent deleted)"


def tour(boss: Any) -> tuple[str, str]:
    return "/ravi/ui/chat/", "text=A tour in six messages"


@pytest.mark.parametrize(
    "made",
    [versions, prompt, lost, failed, silent, ticks, decided, asked, audited, listed, operated, tour],
    ids=lambda made: made.__name__,
)
def test_a_page_fits(
    made: Callable[[Any], tuple[str, str]], server: Any, new_page: Callable[..., Any], settings: Any
) -> None:
    settings.RAVI = {**settings.RAVI, "LEASE_S": 30, "HEARTBEAT_S": 10}
    boss = elsewhere(lambda: get_user_model().objects.create_superuser("boss"))
    address, sign = elsewhere(made, boss)
    page = new_page(server.url, boss)
    page.goto(address)
    page.locator(sign).first.wait_for(timeout=BOUND_S * 1000, state="attached")
    for summary in page.locator(".sent > summary, #details > summary").all():
        summary.click()

    part = "#result_list" if page.locator("#result_list").count() else "html"  # without Django's own search
    for scheme, width in looks(page, 1360, 390, part=part):
        assert misplaced(page) == [], (scheme, width)
    assert page.errors == []


def test_the_login_page_names_the_users_and_fits(server: Any, new_page: Callable[..., Any]) -> None:
    page = new_page(server.url)
    page.goto("/accounts/login/")

    assert page.locator(".users dt").all_inner_texts() == ["demo", "staff", "ada", "admin"]
    for scheme, width in looks(page, 1360, 390):
        assert misplaced(page) == [], (scheme, width)


def test_a_superuser_chooses_the_conversations_of_all(server: Any, new_page: Callable[..., Any]) -> None:
    boss = elsewhere(lambda: get_user_model().objects.create_superuser("boss"))
    page = new_page(server.url, boss)
    page.goto(elsewhere(versions, boss)[0])
    page.locator(".talk").first.wait_for()
    assert page.locator(".talk").count() == 1, "one's own, and forks of each other once"

    page.check("#everyone")

    page.locator(".talk:has-text('Not mine') time:has-text('stranger')").wait_for()
    elsewhere(lambda: Session.objects.filter(title="Not mine").update(title="Renamed"))
    page.evaluate("dispatchEvent(new Event('focus'))")
    page.locator(".talk:has-text('Renamed')").wait_for()


def test_a_customer_reads_no_developers_error(demo: Any, server: Any, new_page: Callable[..., Any]) -> None:
    page = new_page(server.url, demo)
    page.goto(elsewhere(failed, demo)[0])

    page.locator(".ravi-error p:text-is('This answer could not be finished.')").wait_for()
    assert "ValueError" not in page.locator("ravi-chat").inner_text()


def test_the_tour_stays_as_a_bar_that_leads_to_the_next_step(
    demo: Any, server: Any, worker: Any, new_page: Any
) -> None:
    page = new_page(server.url, demo)
    page.goto("/ravi/ui/chat/")
    page.click(".starters >> text=What is 12 * (3 + 4)?")
    page.locator(".tour:has-text('Tour: 1 of 6 done')").wait_for()
    first = page.url

    page.click(".tour .next:has-text('Send an invoice')")

    page.locator(".user:has-text('Send an invoice of 100 to ACME')").wait_for()
    page.locator(".tour:has-text('2 of 6 done'):has-text('Next: Calculate')").wait_for()
    assert page.url != first
    page.click("[aria-label='Close the tour']")
    page.reload()
    page.locator(".user").wait_for()
    assert page.locator(".tour").is_hidden() and page.errors == []
