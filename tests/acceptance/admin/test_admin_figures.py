"""The page of figures behind the inbox."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.support import world

PAGE = "/admin/ravi/humanrequest/figures/"


def cells(response: Any) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", response.content.decode().partition("<tbody>")[2], re.S)
    return [re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", row) for row in rows]


@pytest.fixture
def some(transactional_db: None) -> None:
    from tests.support.asked import approval_of
    from tests.support.runs import make_run

    world.answer(approval_of(make_run(tenant="acme"), "group:finance").id, "deny")
    approval_of(make_run(tenant="other"), "group:<b>")


@pytest.mark.parametrize("query", ["", "?days=7", "?days=nonsense"])
def test_it_tells_how_people_keep_up(some: None, operator: Any, query: str) -> None:
    client = operator("view_humanrequest")
    client.get(PAGE)  # what is cached
    with CaptureQueriesContext(connection) as queries:
        response = client.get(PAGE + query)

    assert response.status_code == 200
    first, second = cells(response)
    assert first[:4] == ["pay", "group:&lt;b&gt;", "1", "1"]
    assert second[:9] == ["pay", "group:finance", "1", "0", "—", "1", "100%", "0", "0"]
    assert len(queries) < 15


def test_of_a_tenant_one_sees_that_tenants_figures(some: None, operator: Any, root: Any, settings: Any) -> None:
    client = operator("view_humanrequest")
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: "acme"}

    assert [row[1] for row in cells(client.get(PAGE))] == ["group:finance"]
    assert len(cells(root.get(PAGE))) == 2, "a superuser sees all"
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: "none"}
    assert b"There were no requests." in client.get(PAGE).content
