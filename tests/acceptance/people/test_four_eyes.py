"""Four eyes: an owner confirms what `owner` is asked, and decides nothing else of their own run, in any way."""

from __future__ import annotations

import json
from contextlib import suppress
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.urls import reverse

from ravi_django.kernel import ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.models import Delegation, HumanRequest, Run
from tests.support import world
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.cases import case
from tests.support.inbox import decide, html_of, logged_in, page_of, words
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, make_run
from tests.support.world import fork

pytestmark = pytest.mark.django_db(transaction=True)

HOLDERS = "permission:ravi.change_humanrequest"
OWNS = [("owner", 60), "staff"]
ADDRESSES = {
    "owner": True,
    "owner, then staff": True,
    "staff": False,
    "group:finance": False,
    HOLDERS: False,
    "user:ann": False,
}


@pytest.fixture
def people_here(django_user_model: Any, finance: list[Any]) -> tuple[Any, Any]:
    """ann, whose run it is, and bob. Every address but that of a user means both."""
    for user in finance:
        user.user_permissions.add(Permission.objects.get(codename="change_humanrequest"))
        user.is_staff = True
        user.save()
    return finance[0], finance[1]


def by_rest(user: Any, request: HumanRequest, said: dict[str, Any]) -> None:
    body = json.dumps(said)
    logged_in(user).post(f"/ravi/requests/{request.id}/answer/", body, content_type="application/json")


def by_signal(user: Any, request: HumanRequest, said: dict[str, Any]) -> None:
    body = json.dumps({"name": f"hitl:{request.id}", "payload": {"text": "", **said}})
    logged_in(user).post(f"/ravi/runs/{request.run_id}/signals/", body, content_type="application/json")


def by_link(user: Any, request: HumanRequest, said: dict[str, Any]) -> None:
    address = reverse("ravi:decide", args=[world.token_of(request, user)])
    logged_in(user).post(address, {"version": request.version, **said})


def by_admin(user: Any, request: HumanRequest, said: dict[str, Any]) -> None:
    decide(logged_in(user), request, **said)


def by_code(user: Any, request: HumanRequest, said: dict[str, Any]) -> None:
    with suppress(ForbiddenError, NotFoundError):
        world.answer(request, **said, by=user)


WAYS = {"code": by_code, "REST": by_rest, "signal": by_signal, "link": by_link, "admin": by_admin}


def decides(way: Any, user: Any, request: HumanRequest, **said: Any) -> bool:
    """Whether this decision of theirs counts."""
    way(user, request, said or {"action": "approve"})
    request.refresh_from_db()
    return request.status == "answered" and request.answered_by == user


@pytest.mark.parametrize("way", WAYS)
def test_an_owner_decides_on_nothing_but_their_own_confirmation(way: str, people_here: tuple[Any, Any]) -> None:
    ann, bob = people_here
    for to, allowed in ADDRESSES.items():
        with case(to):
            request = approval_of(make_run(owner=ann), OWNS if "then" in to else to)
            assert decides(WAYS[way], ann, request) is allowed
            if to not in ("user:ann", "owner", "owner, then staff"):
                assert decides(by_rest, bob, request)


def test_a_socket_goes_by_the_same_rule(server: Any, people_here: tuple[Any, Any]) -> None:
    ann, _ = people_here
    run = make_run(owner=ann)
    for to, allowed in ADDRESSES.items():
        request = approval_of(run, OWNS if "then" in to else to)
        with server.connect(f"/ws/ravi/requests/?ticket={world.tickets_issue(ann)[0]}") as client:
            client.send(json.dumps({"type": "answer", "request": str(request.id), "action": "approve"}))
            while (found := json.loads(client.recv(timeout=BOUND_S)))["type"] not in ("accepted", "error"):
                pass
        assert (found["type"] == "accepted") is allowed, (to, found)


@pytest.mark.parametrize("kind", [Kind.UNCERTAIN, Kind.QUESTION])
def test_uncertain_effects_are_decisions_and_questions_are_not(kind: Kind, people_here: tuple[Any, Any]) -> None:
    ann, bob = people_here
    request = asked_by(make_run(owner=ann), kind, "staff", tool="pay")
    said = {"action": "resolve", "outcome": "fail"} if kind == Kind.UNCERTAIN else {"action": "answer", "text": "red"}

    assert decides(by_rest, ann, request, **said) is (kind == Kind.QUESTION)
    assert decides(by_rest, bob, request, **said) is (kind == Kind.UNCERTAIN)


# ------------------------------------------------------------------------------------- what becomes of a request


def paying(owner: Any, to: Any = "staff") -> Run:
    async def story(ctx: Any, inbox: Any) -> str:
        decision = await ctx.approve("pay", {"amount": 7}, to=to)
        return f"{decision.decision}: {decision.reason}"

    code(story)
    return drive(make_run(owner=owner))


def open_of(run: Run) -> HumanRequest:
    return HumanRequest.objects.get(run=run, status="pending")


def escalated(run: Run, ann: Any, bob: Any, clock: Any) -> HumanRequest:
    clock.advance(61)
    world.sweeper_sweep(lambda run_ids: None)
    return open_of(run)


def delegated(run: Run, ann: Any, bob: Any, clock: Any) -> HumanRequest:
    Delegation.objects.create(user=bob, delegate=ann)
    return open_of(run)


def reassigned(run: Run, ann: Any, bob: Any, clock: Any) -> HumanRequest:
    return world.reassign(open_of(run), "group:finance", by=bob)


def retried(run: Run, ann: Any, bob: Any, clock: Any) -> HumanRequest:
    Run.objects.filter(pk=run.pk).update(status="failed")
    HumanRequest.objects.filter(run=run).update(status="cancelled")
    world.store_retry(run.id)
    return open_of(drive(run))


def forked(run: Run, ann: Any, bob: Any, clock: Any) -> HumanRequest:
    return open_of(drive(fork(run.id, run.next_seq - 1)))


@pytest.mark.parametrize(
    ("then", "to"),
    [(escalated, OWNS), (delegated, "staff"), (reassigned, "staff"), (retried, "staff"), (forked, "staff")],
)
def test_it_stays_so_whatever_becomes_of_the_request(then, to, people_here, clock) -> None:
    ann, bob = people_here
    request = then(paying(ann, to), ann, bob, clock)

    assert request.to != "owner"
    assert not decides(by_rest, ann, request)
    assert decides(by_rest, bob, request)


def test_a_retry_asks_the_owner_to_confirm_again_though_others_were_asked_since(people_here, clock) -> None:
    ann, bob = people_here
    run = paying(ann, OWNS)
    assert escalated(run, ann, bob, clock).to != "owner"

    assert retried(run, ann, bob, clock).to == "owner"


@pytest.mark.parametrize("to", ["owner", "user:ann"])
def test_nobody_makes_a_confirmation_of_it(to: str, people_here: tuple[Any, Any]) -> None:
    ann, bob = people_here
    request = approval_of(make_run(owner=ann), "staff")

    with pytest.raises(InvalidInputError, match=r"Nobody at .* may answer"):
        world.reassign(request, to, by=bob)


def test_a_confirmation_that_is_put_to_others_is_a_decision(people_here: tuple[Any, Any]) -> None:
    ann, bob = people_here
    request = world.reassign(approval_of(make_run(owner=ann), "owner"), "staff", by=ann)

    assert not decides(by_rest, ann, request)
    assert decides(by_rest, bob, request)


# --------------------------------------------------------------------------------------------------- the refusal


def test_who_is_refused_reads_why_and_who_decides(people_here: tuple[Any, Any]) -> None:
    request = approval_of(make_run(owner=people_here[0]), "group:finance")
    told = "your own run, so another person must answer it (four eyes): group:finance"
    browser = logged_in(people_here[0])

    shown = unescape(words(html_of(browser.get(page_of(request)))))
    said = browser.post(f"/ravi/requests/{request.id}/answer/", {"action": "approve"}, content_type="application/json")

    for text in (shown, said.json()["error"]["message"]):
        assert told in text
        assert "one member of staff, set RAVI['FOUR_EYES'] to False" in text


def test_a_customer_reads_nothing_of_the_sites_settings(django_user_model: Any) -> None:
    customer = django_user_model.objects.create_user("customer")
    request = approval_of(make_run(owner=customer), "staff")

    with pytest.raises(ForbiddenError, match=r"addressed to staff\. You may only read it\.\Z"):
        world.people_check(customer, request)


def test_the_only_member_of_staff_is_told_at_once(django_user_model: Any) -> None:
    only = django_user_model.objects.create_user("only", is_staff=True)
    run = paying(only)

    assert "only the run's owner" in str(run.output)
    assert "one member of staff, set RAVI['FOUR_EYES'] to False" in str(run.output)


# ------------------------------------------------------------------------------------------- who stands in for staff


@pytest.mark.parametrize("to", ["staff", HOLDERS])
def test_what_staff_decide_is_not_handed_to_a_customer(to, people_here, django_user_model) -> None:
    bob, customer = people_here[1], django_user_model.objects.create_user("customer")
    Delegation.objects.create(user=bob, delegate=customer)
    Delegation.objects.create(user=django_user_model.objects.create_superuser("root"), delegate=customer)
    request = approval_of(make_run(), to)

    assert not decides(by_rest, customer, request)
    assert request.pk not in world.open_among(customer, [request])
    for address in ("user:customer", "group:customers"):
        customer.groups.add(Group.objects.get_or_create(name="customers")[0])
        with pytest.raises(InvalidInputError, match="staff"):
            world.reassign(request, address, by=bob)
    customer.is_staff = True
    customer.save()
    assert decides(by_rest, customer, request)
