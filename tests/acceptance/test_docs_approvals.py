"""What docs/approvals.md shows is run here."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group

from ravi_django import register, submit
from ravi_django.agents import ReActAgent
from ravi_django.kernel import ApprovalDecision, ToolUseBlock
from ravi_django.models import HumanRequest, JournalEntry, Status
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.docs import Page

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Page("approvals")


@pytest.fixture(autouse=True)
def _no_worker_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "dispatch_send")


def test_the_payment_waits_and_is_made_as_a_person_says(django_user_model, capsys) -> None:
    ann = django_user_model.objects.create_user("ann")
    ann.groups.add(Group.objects.create(name="finance"))
    owner = django_user_model.objects.create_user("owner")
    PAGE.run("shop/payments.py")
    shop = PAGE.run("shop/decide.py")
    run = shop["order"](owner)
    run_until_idle()
    run.refresh_from_db()
    assert run.status == Status.SUSPENDED
    assert HumanRequest.objects.get(run=run).to == "group:finance"

    shop["decide"](run, ann)
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.output) == (Status.COMPLETED, "It is paid.")
    printed = capsys.readouterr().out.strip()
    assert printed in PAGE.code("shop/decide.py")
    made = JournalEntry.objects.get(run=run, kind="tool.call", phase="result")
    assert made.request["arguments"] == {"amount": 450, "to": "ACME"}


@pytest.mark.parametrize(
    ("call", "decided"),
    [
        (
            ("pay", {"amount": 5000}, "high"),
            ApprovalDecision("modified", {"amount": 1000}, "the most that is paid at once"),
        ),
        (("pay", {"amount": 5}, "high"), True),
        (("close_account", {}, "critical"), ApprovalDecision("denied", reason="use the form")),
    ],
)
def test_the_handler_decides(call: Any, decided: Any) -> None:
    assert PAGE.run("shop/handler.py")["decide_here"](*call, None) == decided


@pytest.mark.parametrize(
    ("action", "output"), [("approve", "deployed 3"), ("edit", "deployed 4"), ("deny", "not deployed: not on a Friday")]
)
def test_code_asks_by_itself(django_user_model, action: str, output: str) -> None:
    ann = django_user_model.objects.create_user("ann", is_staff=True)
    PAGE.run("shop/deploying.py")
    run = submit("shop/deployer", "go")
    run_until_idle()

    more = {"arguments": {"version": 4}} if action == "edit" else {}
    world.answer(HumanRequest.objects.get(run=run), action, reason="not on a Friday", by=ann, **more)
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.output) == (Status.COMPLETED, output)


def test_the_user_confirms_a_mail_of_their_own_run(django_user_model: Any, mailoutbox: Any) -> None:
    owner = django_user_model.objects.create_user("owner")
    call = ToolUseBlock(tool_name="send_mail", arguments={"to": "ada@example.com", "text": "Noon."}, call_id="c1")
    register(ReActAgent("mails", model=ScriptedModel([call, "Sent."]), tools=[PAGE.run("shop/mails.py")["send_mail"]]))
    run = submit("react/mails", "Write to Ada.", user=owner)
    run_until_idle()

    world.answer(HumanRequest.objects.get(run=run), "approve", by=owner)
    run_until_idle()

    assert [mail.to for mail in mailoutbox] == [["ada@example.com"]]
