"""What docs/people.md shows is run here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import Group

from ravi_django.checks import check_settings
from ravi_django.kernel import Addressees, ForbiddenError
from ravi_django.models import HumanRequest
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Page("people")


@pytest.fixture
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = ModuleType("shop.people")
    vars(module).update(PAGE.run("shop/people.py"))
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.people", module)
    given: dict[str, Any] = PAGE.run("settings.py")["RAVI"]
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
    pay, receivers = PAGE.run("shop/payments.py")["pay"], PAGE.run("shop/receivers.py")
    fay, other = (django_user_model.objects.create_user(name) for name in ("fay", "other"))
    for user, tenant in ((fay, "tenant-acme"), (other, "tenant-none")):
        user.groups.add(Group.objects.get_or_create(name="finance")[0], Group.objects.get_or_create(name=tenant)[0])

    async def story(ctx: Any, inbox: Any) -> str:
        return f"{await pay(ctx, 400)} {await pay(ctx, 600)}"

    code(story)
    run = drive(make_run(tenant="acme"))
    request = HumanRequest.objects.get(run=run)
    assert world.why_not(other, request), "of another tenant"
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
