"""The demo site's own parts: its users, its agent's side effect, its pages."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from project.agents import send_invoice
from project.models import Invoice
from ravi_django import submit
from ravi_django.kernel import Effect, Risk
from ravi_django.kernel.errors import ToolRefused
from ravi_django.models import HumanRequest, Run
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.cases import case
from tests.support.world import get_agent

pytestmark = pytest.mark.django_db
MAIL = "Send a mail to ada@example.com: See you at noon."


def test_seed_demo_makes_its_users_and_may_be_repeated() -> None:
    call_command("seed_demo", verbosity=0)
    call_command("seed_demo", verbosity=0)
    demo, ada, staff, admin = (authenticate(username=name, password=name) for name in ("demo", "ada", "staff", "admin"))
    assert demo is not None and not demo.is_staff
    assert ada is not None and not ada.is_staff
    assert staff is not None and staff.is_staff and not staff.is_superuser
    assert admin is not None and admin.is_superuser
    # seed demo leaves a changed password alone
    call_command("seed_demo", verbosity=0)
    demo = authenticate(username="demo", password="demo")
    assert demo is not None
    demo.set_password("other")
    demo.save()
    call_command("seed_demo", verbosity=0)
    assert authenticate(username="demo", password="other") == demo


def test_the_demo_agents_are_registered() -> None:
    tools = {tool.name: tool for tool in get_agent("react/assistant").tools}
    assert set(tools) == {"calculator", "current_time", "send_invoice", "send_mail"}
    for name in ("send_invoice", "send_mail"):
        assert (tools[name].risk, tools[name].promised_effect) == (Risk.HIGH, Effect.AT_MOST_ONCE)
    team = get_agent("orchestrator/team")
    assert [tool.name for tool in team.tools] == ["handoff_researcher", "handoff_editor"]
    assert {str(get_agent(address).id) for address in ("react/researcher", "react/editor")} == {
        "react/researcher",
        "react/editor",
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("text", "to"), [("Send an invoice of 100 to ACME", "staff"), (MAIL, "owner")])
def test_staff_approve_an_invoice_and_its_owner_confirms_a_mail(
    monkeypatch: pytest.MonkeyPatch, mailoutbox: Any, text: str, to: str
) -> None:
    world.silence(monkeypatch, "dispatch_send")
    call_command("seed_demo", verbosity=0)
    users = {user.get_username(): user for user in get_user_model().objects.all()}
    run = submit("react/assistant", text, user=users["demo"])
    run_until_idle()
    request = HumanRequest.objects.get(run=run)

    assert request.to == to
    world.answer(request, "approve", by=users["demo" if to == "owner" else "staff"])

    run_until_idle()
    run.refresh_from_db()
    assert "is done: " in (run.output or "")
    assert [mail.body for mail in mailoutbox] == (["See you at noon."] if to == "owner" else [])


@pytest.mark.django_db(transaction=True)
def test_the_rehearsed_team_shares_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "dispatch_send")
    run = submit("orchestrator/team", "Calculate 12 * (3 + 4), and write a note about it.")
    run_until_idle()
    run.refresh_from_db()
    assert "researcher says: 12 * (3 + 4) = 84. editor says: " in (run.output or "")
    assert sorted(Run.objects.filter(parent=run).values_list("agent", flat=True)) == [
        "react/editor",
        "react/researcher",
    ]


def test_the_demos_own_pages(client: Client) -> None:
    call_command("seed_demo", verbosity=0)
    client.login(username="demo", password="demo")
    response = client.get(reverse("chat"), follow=True)
    html = response.content.decode()
    assert '<option value="react/assistant" selected>' in html and '<option value="orchestrator/team">' in html
    assert "Send an invoice of 100 to ACME" in html and "csrftoken" in response.cookies
    # no page is cached or runs an inline script, of the admin neither; a page keeps a policy of its own
    pages = [client.get(reverse(name)) for name in ("feed", "login", "admin:login", "ravi:chat")]
    client.logout()
    for page in (response, *pages, client.get(reverse("login")), client.get(reverse("admin:login"))):
        policy = page["Content-Security-Policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
        assert page["Cache-Control"] == "private, no-store"
    assert "connect-src" in response["Content-Security-Policy"] and "connect-src" not in policy


def test_send_invoice_writes_the_invoice() -> None:
    for amount in [0, -1, float("nan"), float("inf")]:
        with case(amount):
            with pytest.raises(ToolRefused, match="more than zero"):
                send_invoice.execute(customer="ACME", amount=amount, ctx=SimpleNamespace(idempotency_key="k1"))
            assert not Invoice.objects.exists()
    context = SimpleNamespace(idempotency_key="k1")
    answer = send_invoice.execute(customer="ACME", amount=99.5, ctx=context)
    invoice = Invoice.objects.get()
    assert (invoice.customer, invoice.amount, invoice.idempotency_key) == ("ACME", Decimal("99.50"), "k1")
    assert answer == f"Invoice {invoice.pk}: 99.5 sent to ACME."
