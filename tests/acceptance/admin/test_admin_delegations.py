"""Who stands in for whom is everybody's own affair; what holds for a session is taken back by who may."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from ravi_django.models import Delegation, Session, StickyDecision
from tests.support import world
from tests.support.cases import case
from tests.support.inbox import logged_in, page

pytestmark = pytest.mark.django_db(transaction=True)

ADD = "/admin/ravi/delegation/add/"
LIST = "/admin/ravi/delegation/"


@pytest.fixture
def users(transactional_db: None, django_user_model: Any) -> Any:
    make = django_user_model.objects.create_user
    found = {name: make(name, is_staff=True) for name in ("ann", "bob", "clerk")}
    found["boss"] = make("boss", is_staff=True, is_superuser=True)
    found["gone"] = make("gone", is_staff=True, is_active=False)
    found["guest"] = make("guest")
    clerk = Permission.objects.filter(content_type__app_label="ravi", codename__endswith="delegation")
    found["clerk"].user_permissions.set(clerk)
    return found


def filled(**given: Any) -> dict[str, Any]:
    return {"delegate": "bob", "since_0": "", "since_1": "", "until_0": "", "until_1": "", "reason": "", **given}


def test_somebody_stands_in_for_me(users: Any) -> None:
    client = logged_in(users["ann"])
    assert 'name="user"' not in page(client, ADD)

    assert client.post(ADD, filled(reason="holidays")).status_code == 302

    made = Delegation.objects.get()
    assert (made.user, made.delegate, made.created_by) == (users["ann"], users["bob"], users["ann"])
    assert (made.until, made.reason) == (None, "holidays")
    assert LogEntry.objects.get().user == users["ann"]
    assert "holidays" in page(client, LIST)


def test_nobody_makes_another_stand_in_for_a_third(users: Any) -> None:
    """Least of all themselves."""
    logged_in(users["bob"]).post(ADD, filled(user="ann", delegate="bob"))
    logged_in(users["bob"]).post(ADD, filled(user="ann", delegate="ann"))

    assert [(row.user.username, row.delegate.username) for row in Delegation.objects.all()] == [("bob", "ann")]


def test_who_is_permitted_may_but_not_for_a_superuser(users: Any) -> None:
    client = logged_in(users["clerk"])

    client.post(ADD, filled(user="ann", delegate="bob"))
    refused = client.post(ADD, filled(user="boss", delegate="clerk"))

    assert "you may not choose" in refused.content.decode()
    assert [(row.user.username, row.delegate.username) for row in Delegation.objects.all()] == [("ann", "bob")]
    logged_in(users["boss"]).post(ADD, filled(user="boss", delegate="bob"))
    assert Delegation.objects.filter(user=users["boss"], delegate=users["bob"]).exists()


def test_what_makes_no_delegation_is_refused_with_words(users: Any) -> None:
    for given, words in (
        ({"delegate": "ann"}, "somebody other"),
        ({"delegate": "gone"}, "No active user"),
        ({"delegate": "nobody"}, "No active user"),
        ({"delegate": ""}, "required"),
        ({"until_0": "2020-01-01", "until_1": "10:00"}, "The end must be after"),
    ):
        with case(given, words):
            response = logged_in(users["ann"]).post(ADD, filled(**given))
            assert words in response.content.decode()
            assert not Delegation.objects.exists()


def test_it_says_what_a_delegate_can_never_answer_and_refuses_one_who_can_answer_nothing(users, settings) -> None:
    never = "Not staff: guest can never answer requests to staff or to a permission."
    client, boss = logged_in(users["ann"]), logged_in(users["boss"])
    assert never in client.post(ADD, filled(delegate="guest"), follow=True).content.decode()
    change = f"{LIST}{Delegation.objects.get().pk}/change/"
    assert never in client.post(change, filled(reason="still"), follow=True).content.decode()
    for delegate in ("bob", "boss"):
        assert "can never answer" not in client.post(ADD, filled(delegate=delegate), follow=True).content.decode()
    Delegation.objects.all().delete()

    tenants = {"ann": {"acme"}, "bob": {"other"}, "clerk": {"acme", "other"}, "guest": set()}
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: tenants[user.username]}
    for user, delegate in (("ann", "bob"), ("ann", "guest"), ("boss", "guest")):
        refused = boss.post(ADD, filled(user=user, delegate=delegate)).content.decode()
        assert f"{delegate} can answer no request of {user}: they have no tenant in common." in refused
    for user, delegate in (("ann", "clerk"), ("boss", "bob"), ("ann", "boss")):
        assert boss.post(ADD, filled(user=user, delegate=delegate)).status_code == 302
    assert Delegation.objects.count() == 3


def test_mine_is_prolonged_and_ended_by_me_and_by_nobody_else(users: Any) -> None:
    mine = Delegation.objects.create(user=users["ann"], delegate=users["bob"])
    address = f"{LIST}{mine.pk}/change/"
    until = timezone.now() + timedelta(days=3)
    form = filled(until_0=f"{until:%Y-%m-%d}", until_1="10:00", user="bob", delegate="clerk")

    for name in ("bob", "clerk"):
        if name == "bob":
            assert logged_in(users[name]).post(address, form).status_code == 403, "sees it, as it is to him"
            assert logged_in(users[name]).post(f"{LIST}{mine.pk}/delete/", {"post": "yes"}).status_code == 403
    assert logged_in(users["ann"]).post(address, form).status_code == 302
    mine.refresh_from_db()
    assert (mine.user, mine.delegate, mine.until.day) == (users["ann"], users["bob"], until.day)
    assert logged_in(users["ann"]).post(f"{LIST}{mine.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Delegation.objects.exists()


def test_others_delegations_are_not_shown(users: Any) -> None:
    theirs = Delegation.objects.create(user=users["ann"], delegate=users["guest"], reason="a secret")

    assert "a secret" not in page(logged_in(users["bob"]), LIST)
    assert logged_in(users["bob"]).get(f"{LIST}{theirs.pk}/change/").status_code == 302, "there is no such row"
    assert "a secret" in page(logged_in(users["clerk"]), LIST)


def test_a_superusers_delegation_is_prolonged_by_no_clerk(users: Any) -> None:
    old = Delegation.objects.create(user=users["boss"], delegate=users["clerk"])

    assert logged_in(users["clerk"]).post(f"{LIST}{old.pk}/change/", filled(reason="still")).status_code == 403

    old.refresh_from_db()
    assert old.reason == ""


# ------------------------------------------------------------------------------------------- for this session


@pytest.fixture
def decisions(users: Any) -> list[StickyDecision]:
    session = world.create_session(Session(agent="test/code"))
    given = [("ann", "pay"), ("bob", "<b>send</b>")]
    return [
        StickyDecision.objects.create(
            session=session,
            agent="test/code",
            tool=tool,
            risk="high",
            action="approve",
            decided_by=users[name],
            decided_by_name=name,
        )
        for name, tool in given
    ]


def revoke(client: Client, decisions: list[StickyDecision]) -> str:
    chosen = {"action": "revoke", "_selected_action": [str(decision.pk) for decision in decisions]}
    return str(client.post("/admin/ravi/stickydecision/", chosen, follow=True).content.decode())


def test_who_decided_it_takes_it_back(users: Any, decisions: list[StickyDecision]) -> None:
    client = logged_in(users["ann"])
    shown = page(client, "/admin/ravi/stickydecision/")
    assert "pay" in shown and "send" not in shown

    revoke(client, decisions)

    mine, other = StickyDecision.objects.order_by("id")
    assert mine.revoked_at is not None and mine.revoked_by == users["ann"]
    assert other.revoked_at is None
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.change_message) == (users["ann"], str(mine.pk), "Revoked: approve pay")


def test_who_is_permitted_takes_back_all_and_only_once(users: Any, decisions: list[StickyDecision]) -> None:
    users["clerk"].user_permissions.set(Permission.objects.filter(codename="change_stickydecision"))
    client = logged_in(users["clerk"])

    assert "2 revoked" in revoke(client, decisions)
    assert "2 unchanged" in revoke(client, decisions)
    assert not world.revoke_sticky([decisions[0].pk], by=users["boss"])

    assert LogEntry.objects.count() == 2
