"""Who approves the risky calls of an agent that is made in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group

from ravi_django.admin.agents.fields import missing
from ravi_django.agents.tools.approvers import Approvers
from ravi_django.models import Agent
from tests.acceptance.admin.agent_support import add, faults
from tests.support.cases import case

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def finance(django_user_model: Any) -> Group:
    django_user_model.objects.create_user("ann")
    return Group.objects.create(name="finance")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (" group:finance ", "group:finance"),
        ('"group:finance"', "group:finance"),
        ("user:ann", "user:ann"),
        ("permission:auth.change_user", "permission:auth.change_user"),
        ('[["group:finance", 60], "staff"]', [{"to": "group:finance", "within": 60.0}, "staff"]),
        ('{"calculator": "group:finance",\r\n "*": "staff"}', {"calculator": "group:finance", "*": "staff"}),
    ],
)
def test_they_are_named_in_the_form(root, finance, given: str, kept: Any) -> None:
    response = add(root, approvers=given)

    assert response.status_code == 302, faults(response)
    assert Agent.objects.get(address="support/orders").spec["approvers"] == kept


def test_without_any_the_spec_has_none(root) -> None:
    add(root, approvers="  ")

    assert "approvers" not in Agent.objects.get(address="support/orders").spec


def test_what_names_nobody_is_a_fault_of_the_field(root) -> None:
    for given, words in (
        ("finance", "is no address"),
        ("group:nobody", "permission: group:nobody"),
        ('["user:gone"]', "permission: user:gone"),
        ("permission:auth.fly", "permission: permission:auth.fly"),
        ('{"high": [["group:a", 5], "group:b"]}', "permission: group:a, group:b"),
        ('{"other": "staff"}', "the tools are: calculator"),
        ('{"high": "staff"', "Enter an address (group:finance) or JSON"),
        ("[" * 60_000, "nested more than 200 levels deep"),
        ("{}", "approvers is empty"),
        ("[7]", "approvers: "),
        ('<script>alert("evil")</script>', "is no address"),
    ):
        with case(given, words):
            response = add(root, approvers=given)
            assert response.status_code == 200
            assert not Agent.objects.filter(address="support/orders").exists()
            assert words in str(response.context["adminform"].form.errors["approvers"].as_text())
            assert b"<script>alert(" not in response.content


def test_those_that_are_gone_are_found_in_three_queries(root, finance, django_assert_num_queries) -> None:
    names = {
        f"tool{number}": [(f"group:g{number}", 5), (f"user:u{number}", 5), "group:finance"] for number in range(20)
    }
    approvers = Approvers.of({**names, "*": "permission:auth.change_user"})

    with django_assert_num_queries(3):
        gone = missing(approvers)

    assert len(gone) == 40
    assert "group:finance" not in gone and "permission:auth.change_user" not in gone
