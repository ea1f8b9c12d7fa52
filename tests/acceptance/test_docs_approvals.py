"""What docs/approvals.md shows is run here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group

from ravi_django import submit
from ravi_django.kernel import ApprovalDecision
from ravi_django.models import HumanRequest, JournalEntry, Status
from ravi_django.runtime import dispatch, human
from ravi_django.testing import run_until_idle

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = (Path(__file__).resolve().parents[2] / "docs/approvals.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# shop/(\w+)\.py\n(.*?)```", PAGE, re.DOTALL))


def module(name: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": f"shop.{name}"}
    exec(compile(BLOCKS[name], f"shop/{name}.py", "exec"), space)
    return space


@pytest.fixture(autouse=True)
def _no_worker_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "send", lambda run_id: None)


def test_the_payment_waits_and_is_made_as_a_person_says(django_user_model, capsys) -> None:
    ann = django_user_model.objects.create_user("ann")
    ann.groups.add(Group.objects.create(name="finance"))
    owner = django_user_model.objects.create_user("owner")
    module("payments")
    shop = module("decide")
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
    assert printed in BLOCKS["decide"]
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
    assert module("handler")["decide_here"](*call, None) == decided


@pytest.mark.parametrize(
    ("action", "output"), [("approve", "deployed 3"), ("edit", "deployed 4"), ("deny", "not deployed: not on a Friday")]
)
def test_code_asks_by_itself(django_user_model, action: str, output: str) -> None:
    ann = django_user_model.objects.create_user("ann", is_staff=True)
    module("deploying")
    run = submit("shop/deployer", "go")
    run_until_idle()

    more = {"arguments": {"version": 4}} if action == "edit" else {}
    human.answer(HumanRequest.objects.get(run=run), action, reason="not on a Friday", by=ann, **more)
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.output) == (Status.COMPLETED, output)
