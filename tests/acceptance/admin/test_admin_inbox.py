"""The inbox: who sees which requests, how they are found, and what a page of them costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin import AdminSite
from django.db import connection
from django.test.utils import override_script_prefix
from django.utils import timezone

from ravi_django.admin import inbox
from ravi_django.models import HumanRequest, Run
from ravi_django.ws import requests
from tests.support import world
from tests.support.inbox import INBOX, ask, html_of, logged_in, ours, page_of, person, words
from tests.support.many_waiting import copy
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db(transaction=True)


def listed(client: Any, query: str = "") -> list[HumanRequest]:
    response = client.get(f"{INBOX}{query}")
    assert response.status_code == 200, response
    return list(response.context["cl"].result_list)


# --------------------------------------------------------------------------------------------------- who sees what


def test_staff_whom_nobody_asks_see_nothing_of_it() -> None:
    request = ask()
    client = logged_in(person("carl"))

    assert client.get(INBOX).status_code == 403
    assert client.get(page_of(request)).status_code == 404
    assert b"Approvals &amp; questions" not in client.get("/admin/").content


def test_each_sees_what_they_may_answer_and_what_their_own_runs_ask() -> None:
    fay = person("fay", "finance")
    mine = ask(run=make_run(owner=fay), to="user:dora")
    finance, directors = ask(), ask(to="group:directors")

    assert set(listed(logged_in(fay))) == {mine, finance}
    assert set(listed(logged_in(fay), "?mine=yes")) == {finance}
    assert set(listed(logged_in(fay), "?mine=no")) == {mine}
    assert set(listed(logged_in(person("rita", may=("view_humanrequest",))))) == {mine, finance, directors}
    assert set(listed(logged_in(person("root", superuser=True)))) == {mine, finance, directors}


# ----------------------------------------------------------------------------------------------------- the list


def test_a_row_tells_what_is_asked_of_whom_and_what_is_next() -> None:
    person("dora", "directors")
    steps = [("group:finance", 3600), "group:directors"]
    run = make_run(owner=person("olga", staff=False))
    ask(run=run, to=steps, arguments={"customer": "ACME", "amount": 7}, risk="critical")

    text = words(html_of(logged_in(person("fay", "finance")).get(INBOX)))

    for part in (
        "approval send_invoice",
        "customer=ACME",
        "amount=7",
        "test/code",
        "critical",
        "group finance",
        "olga",
    ):
        assert part in text, part
    assert "escalates to group directors at" in text
    assert "1 to answer" in text


def test_the_number_counts_what_can_be_answered_now_as_the_socket_does() -> None:
    user = person("fay", "finance")
    open_, late, ended = ask(), ask(expires_in=-1), ask()
    Run.objects.filter(pk=ended.run_id).update(status="completed")  # its requests are closed with it, or soon after
    client = logged_in(user)

    assert requests.rights_of(user.pk).answerable.count() == 1
    assert "1 to answer" in words(html_of(client.get(INBOX)))
    assert "Approvals &amp; questions (1)" in words(html_of(client.get("/admin/")))
    assert listed(client, "?mine=yes") == [open_]
    assert set(listed(client, "?mine=no")) == {late, ended}


def test_pending_ones_are_shown_first_of_all_and_others_when_asked_for() -> None:
    fay = person("fay", "finance")
    open_, done = ask(), ask()
    world.answer(done.pk, "deny", by=fay, reason="no")
    client = logged_in(fay)

    assert listed(client) == [open_]
    assert listed(client, "?status=answered") == [done]
    assert set(listed(client, "?status=all")) == {open_, done}
    assert "fay" in words(ours(html_of(client.get(f"{INBOX}?status=answered"))))


def test_filters_find_by_kind_risk_tool_agent_and_age() -> None:
    week = UUID(int=int((timezone.now() - timedelta(days=8)).timestamp() * 1000) << 80)
    HumanRequest.objects.filter(pk=ask(tool="wipe", risk="critical").pk).update(id=week)
    question = ask("question", run=make_run("test/other"))
    ask(tool="secret_tool", to="group:directors")
    client = logged_in(person("fay", "finance"))

    html, shown = html_of(client.get(INBOX)), [row.pk for row in listed(client)]
    assert "wipe" in html and "secret_tool" not in html, "the filters offer what the person may see"
    age = list(client.get(INBOX).context["cl"].list_display).index("age")  # the first column has the check boxes
    assert [row.pk for row in listed(client, f"?o={age}")] == shown[::-1] == [week, question.pk]
    assert [row.tool for row in listed(client, "?age=168")] == ["wipe"]
    assert [row.pk for row in listed(client, "?risk=critical")] == [week]
    assert [row.pk for row in listed(client, "?tool=wipe")] == [week]
    assert listed(client, "?agent=test/other") == [question]
    assert listed(client, "?kind__exact=question") == [question]
    assert client.get(f"{INBOX}?tool=never").status_code == 200


def test_a_search_finds_by_ids_words_tool_and_owner() -> None:
    olga = person("olga", staff=False)
    request = ask(run=make_run(owner=olga), text="Pay the plumber?")
    ask(tool="other")
    client = logged_in(person("fay", "finance"))

    for term in (str(request.pk), str(request.run_id), "plumber", "SEND_inv", "olga"):
        assert listed(client, f"?q={term}") == [request], term
    assert listed(client, "?q=nothing") == []


# ---------------------------------------------------------------------------------------------------- what it costs


def test_a_page_of_ten_thousand_takes_under_ten_queries(django_assert_max_num_queries: Any) -> None:
    copy(ask().run, 10_000)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE ravi_humanrequest SET tool = 'tool' || abs(hashtext(id::text)) % 9")
        cursor.execute("UPDATE ravi_run SET agent = 'test/code' || abs(hashtext(id::text)) % 7")
    users = [person("fay", "finance"), person("root", superuser=True), person("rita", may=("view_humanrequest",))]
    for user in users:
        client = logged_in(user)
        client.get(INBOX)  # what a process reads once
        for query in ("", "?tool=tool3&o=5", "?q=tool4"):
            with django_assert_max_num_queries(9):
                html = html_of(client.get(f"{INBOX}{query}"))
        assert "tool4" in html
        with django_assert_max_num_queries(9):
            index = html_of(client.get("/admin/"))
        assert ("99+" in index) == (user.username != "rita")


# --------------------------------------------------------------------------------------------------------- the number


def test_pages_of_other_apps_count_nothing(monkeypatch: Any) -> None:
    ask()
    client = logged_in(person("root", superuser=True))
    monkeypatch.setattr(inbox, "pending", lambda request: 1 / 0)

    assert client.get("/admin/auth/group/").status_code == 200
    assert client.get("/admin/ravi/run/").status_code == 200


def test_a_site_is_counted_once_however_often_it_is_told() -> None:
    site = AdminSite("other")

    inbox.add_to(site)
    counted = site.get_app_list
    inbox.add_to(site)

    assert site.get_app_list is counted


def test_pages_tell_the_script_where_the_inbox_is_and_have_none_inline() -> None:
    request = ask()
    client = logged_in(person("root", superuser=True))

    for address in (
        INBOX,
        page_of(request),
        "/admin/ravi/run/",
        "/admin/ravi/agent/",
        "/admin/ravi/",
        INBOX + "figures/",
    ):
        html = html_of(client.get(address))
        assert "ravi/requests.js" in html and f'data-inbox="{INBOX}"' in html, address
    for address in (INBOX, page_of(request)):
        html = ours(html_of(client.get(address)))
        assert "<script" not in html and " style=" not in html and " onclick=" not in html


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("ws/ravi/", "/shop/ws/ravi/requests/"),
        ("/live/ravi", "/live/ravi/requests/"),
        ("wss://live.example.com/ws/ravi/", "wss://live.example.com/ws/ravi/requests/"),
    ],
)
def test_pages_below_a_prefix_know_where_the_socket_is(settings: Any, given: str, found: str) -> None:
    client = logged_in(person("root", superuser=True))
    settings.RAVI = {**settings.RAVI, "SOCKET_PATH": given}

    with override_script_prefix("/shop/"):
        for address in (INBOX, "/admin/ravi/"):
            assert f'data-socket="{found}"' in html_of(client.get(address))
