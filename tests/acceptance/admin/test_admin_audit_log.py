"""The audit log in the admin: to look at, and nothing else."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.utils import timezone

from ravi_django.models import AuditRecord, Session, StickyDecision
from ravi_django.models.audit import decided_by
from ravi_django.models.base import uuid7
from tests.support import world
from tests.support.asked import approval_of
from tests.support.cases import queries_of
from tests.support.inbox import EVIL, page
from tests.support.runs import make_run, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/ravi/auditrecord/"


def record(key: str, **fields: Any) -> AuditRecord:
    known = {"event": "tool", "name": "echo", "agent": "react/helper", "run_id": uuid7(), "session_id": uuid7()}
    return AuditRecord.objects.create(key=f"{key:>064}", **{**known, **fields})


def test_a_record_says_who_did_what_through_which_agent_and_when(root) -> None:
    olga = get_user_model().objects.create_user("olga")
    found = record("1", owner=olga, detail={"arguments": {"text": EVIL}}, name=EVIL[:200])

    for html in (page(root, LIST), page(root, f"{LIST}{found.pk}/change/")):
        for shown in ("olga", "tool", "&lt;script&gt;", "react/helper", f"/admin/ravi/run/{found.run_id}/change/"):
            assert shown in html, shown
        assert f"{timezone.localtime(found.created_at):%Y-%m-%d %H:%M}" in html
        assert EVIL not in html
    assert "arguments" in html


def test_times_are_written_as_the_language_writes_them(root, settings) -> None:
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "de", "Europe/Berlin"
    record("1", id=uuid7())
    AuditRecord.objects.update(created_at=datetime(2030, 1, 31, 8, 58, 12, tzinfo=UTC))

    assert "31.01.2030 09:58:12" in page(root, LIST)


def test_search_and_filters(root) -> None:
    olga = get_user_model().objects.create_user("olga")
    month_ago = timezone.now() - timedelta(days=20)
    old = record("1", id=UUID(int=(int(month_ago.timestamp() * 1000) << 80) | 1), event="model")
    new = record("2", owner=olga, agent="react/assistant")

    def found(query: str) -> set[str]:
        html = page(root, f"{LIST}?{query}")
        return {item.key.lstrip("0") for item in (old, new) if f"{LIST}{item.pk}/change/" in html}

    assert found("") == {"1", "2"}
    assert found("q=olg") == found("event=tool") == found("since=7") == found("agent=react%2Fassistant") == {"2"}
    assert found(f"q={new.run_id}") == {"2"}
    assert found("since=30") == {"1", "2"}
    assert found("event=model") == {"1"}
    assert found("q=nobody") == set()


def test_the_list_says_and_finds_who_decided_and_for_whom(root) -> None:
    make = get_user_model().objects.create_user
    olga, ada, bob = (make(name, is_staff=True, is_superuser=True) for name in ("olga", "ada", "bob"))
    approved, denied = (approval_of(make_run(owner=olga, session=Session.objects.create(owner=olga))) for _ in range(2))
    world.answer(approved, "approve", by=ada, sticky=True)
    world.answer(denied, "deny", by=bob)
    world.sticky_revoke(list(StickyDecision.objects.all()), by=bob)

    def found(term: str) -> set[tuple[str, ...]]:
        rows = re.findall(r"<tr>.*?</tr>", page(root, f"{LIST}?q={term}").partition("<tbody>")[2], re.DOTALL)
        names = ("name_text", "by", "who")
        return {tuple(re.findall(f"field-{name}[^>]*>([^<]*)<", row)[0] for name in names) for row in rows}

    by_ada = {("approved pay(to=ACME, amount=100)", "ada", "olga")}
    by_bob = {("rejected pay(to=ACME, amount=100)", "bob", "olga"), ("sticky decision revoked pay", "bob", "olga")}
    assert found("ada") == by_ada
    assert found("BO") == by_bob
    assert found("olga") == by_ada | by_bob | {("opened pay(to=ACME, amount=100)", "—", "olga")}
    get_user_model().objects.filter(username="ada").delete()
    assert found("ada") == by_ada


@on_postgresql
def test_who_decided_is_looked_for_in_an_index() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # the table is small

        found = AuditRecord.objects.filter(decided_by(["ada", "bob"])).order_by()
        assert "ravi_audit_by" in found.explain()


def test_the_list_asks_a_fixed_number_of_questions(root) -> None:
    record("0", owner=get_user_model().objects.create_user("first"))
    page(root, LIST)
    before = queries_of(lambda: page(root, LIST))
    for n in range(1, 20):
        record(str(n), owner=get_user_model().objects.create_user(f"user{n}"))

    assert queries_of(lambda: page(root, LIST)) == before
