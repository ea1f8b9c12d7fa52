"""What docs/howto/people.md, docs/howto/approvals.md and docs/reference/access.md show is run here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from ravi_django import access, register, submit
from ravi_django.agents import ReActAgent
from ravi_django.checks import check_settings
from ravi_django.kernel import Addressees, AgentNotFoundError, ForbiddenError, HumanInput, ToolUseBlock, TopicId
from ravi_django.models import HumanRequest, JournalEntry, Status
from ravi_django.site_checks import check_access_policy
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)

PEOPLE, APPROVALS, ACCESS = Page("people"), Page("approvals"), Page("access")


@pytest.fixture
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = ModuleType("shop.people")
    vars(module).update(PEOPLE.run("shop/people.py"))
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.people", module)
    given: dict[str, Any] = PEOPLE.run("settings.py")["RAVI"]
    settings.RAVI = {**settings.RAVI, **given}
    return given


def test_the_pages_settings_pass_the_checks(site: dict[str, Any]) -> None:
    assert [str(found) for found in check_settings() if found.id in ("ravi.E012", "ravi.E013", "ravi.E014")] == []
    found = world.site_rules_addressees("approval", "refund", "high")
    assert found is not None and [step.to for step in found.steps] == ["group:finance", "group:directors"]
    assert world.site_rules_addressees("approval", "other", "critical") == Addressees.of("group:directors")
    assert world.site_rules_addressees("approval", "other", "high") == Addressees.of("permission:shop.approve_tools")
    assert world.site_rules_addressees("budget") == Addressees.of("group:finance")


def test_the_pages_payment_is_asked_for_and_its_rules_hold(site: dict[str, Any], django_user_model: Any) -> None:
    pay, receivers = PEOPLE.run("shop/paying.py")["pay"], Page("signals").run("shop/receivers.py")
    fay, other = (django_user_model.objects.create_user(name) for name in ("fay", "other"))
    for user, tenant in ((fay, "tenant-acme"), (other, "tenant-none")):
        user.groups.add(Group.objects.get_or_create(name="finance")[0], Group.objects.get_or_create(name=tenant)[0])

    async def story(ctx: Any, inbox: Any) -> str:
        return f"{await pay(ctx, 400)} {await pay(ctx, 600)}"

    code(story)
    run = drive(make_run(tenant="acme"))
    request = HumanRequest.objects.get(run=run)
    assert world.rights_refusal(other, request), "of another tenant"
    world.answer(request, "approve", by=fay)
    run = drive(run)

    assert run.status == "completed" and run.output == "True False", "who could approve 600 is nobody: denied"
    assert receivers["log"] == ["approval for group:finance", "approve by fay"]


def test_the_hook_refuses_what_is_too_much(site: dict[str, Any], django_user_model: Any) -> None:
    fay = django_user_model.objects.create_user("fay")
    fay.groups.add(Group.objects.create(name="finance"), Group.objects.create(name="tenant-acme"))
    request = HumanRequest.objects.create(
        run=make_run(tenant="acme"), tenant="acme", kind="approval", to="group:finance", arguments={"amount": 600}
    )

    with pytest.raises(ForbiddenError):
        world.answer(request, "approve", by=fay)


# ------------------------------------------------------------------------------------------------------ approvals


@pytest.fixture(autouse=True)
def _no_worker_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "dispatch_send")


def test_the_payment_waits_and_is_made_as_a_person_says(django_user_model, capsys) -> None:
    ann = django_user_model.objects.create_user("ann")
    ann.groups.add(Group.objects.create(name="finance"))
    owner = django_user_model.objects.create_user("owner")
    APPROVALS.run("shop/suppliers.py")
    shop = APPROVALS.run("shop/decide.py")
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
    assert printed in APPROVALS.code("shop/decide.py")
    made = JournalEntry.objects.get(run=run, kind="tool.call", phase="result")
    assert made.request["arguments"] == {"amount": 450, "to": "ACME"}


@pytest.mark.parametrize(
    ("call", "decided"),
    [
        (
            ("pay", {"amount": 5000}, "high"),
            HumanInput("edit", arguments={"amount": 1000}, reason="the most that is paid at once"),
        ),
        (("pay", {"amount": 5}, "high"), True),
        (("close_account", {}, "critical"), HumanInput("deny", reason="use the form")),
    ],
)
def test_the_handler_decides(call: Any, decided: Any) -> None:
    assert Page("approval-code").run("shop/handler.py")["decide_here"](*call, None) == decided


@pytest.mark.parametrize(
    ("action", "output"), [("approve", "deployed 3"), ("edit", "deployed 4"), ("deny", "not deployed: not on a Friday")]
)
def test_code_asks_by_itself(django_user_model, action: str, output: str) -> None:
    ann = django_user_model.objects.create_user("ann", is_staff=True)
    Page("approval-code").run("shop/agents/deploying.py")
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
    register(
        ReActAgent("mails", model=ScriptedModel([call, "Sent."]), tools=[APPROVALS.run("shop/mails.py")["send_mail"]])
    )
    run = submit("react/mails", "Write to Ada.", user=owner)
    run_until_idle()

    world.answer(HumanRequest.objects.get(run=run), "approve", by=owner)
    run_until_idle()

    assert [mail.to for mail in mailoutbox] == [["ada@example.com"]]


# --------------------------------------------------------------------------------------------------------- access


def test_the_pages_agents_and_policy_hold(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ACCESS.run("shop/agents/helpers.py")
    ann = get_user_model().objects.create_user("ann")
    assert access.find(ann, "react/helper")
    with pytest.raises(AgentNotFoundError):
        access.find(ann, "react/refunds")
    assert world.agents_by_address["react/refunds"].public_signals == {"parcel_posted"}

    module = ModuleType("shop.access")
    vars(module).update(ACCESS.run("shop/access.py"))
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.access", module)
    settings.RAVI = {**settings.RAVI, **ACCESS.run("settings.py")["RAVI"]}
    assert check_access_policy() == []
    secret, helper = TopicId("internal", "sales"), world.specs_find("react/helper")
    access.check_follow(ann, helper, TopicId("news", "sport"))
    with pytest.raises(ForbiddenError):
        access.check_follow(ann, helper, secret)
    assert access.policy().may_receive([ann], secret) == set()
    world.access_load.cache_clear()
