"""In whose tenant users are, on every surface: that which RAVI["TENANT_OF"] gives them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from project import feeds
from ravi_django.models import Follow, Publication, Run, Schedule, Session, Source
from tests.acceptance.api.api_support import AGENT, client_of, error_of
from tests.support import world
from tests.support.inbox import logged_in, person

pytestmark = pytest.mark.django_db

RUN = {"agent": AGENT, "input": "hi"}
SCHEDULE = {
    "name": "daily", "agent": AGENT, "input": "x", "every_s": "3600", "jitter_s": "0", "catch_up": "one",
    "priority": "normal", "enabled": "on", "metadata": "{}",
}  # fmt: skip
SOURCE = {
    "name": "hook", "kind": "webhook", "location": "", "agent": AGENT, "signal": "new_source_item", "every_s": "900",
    "options": "{}", "enabled": "on",
}  # fmt: skip


@pytest.fixture(autouse=True)
def hinted(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "fan_out_hint", "background_hint")


@pytest.fixture
def tenant_of(settings: Any) -> Callable[[Any], None]:
    def give(found: Any) -> None:
        hook = found if callable(found) else lambda user: found
        settings.RAVI = {**settings.RAVI, "TENANT_OF": hook}

    return give


@pytest.fixture
def staff(db: None) -> Client:
    return logged_in(person("ed", may=("add_schedule", "view_schedule", "add_source", "view_source")))


def everything(client: Any, staff: Client) -> list[Any]:
    return [
        client.post("/ravi/runs/", RUN, format="json"),
        client.post("/ravi/sessions/", {"agent": AGENT}, format="json"),
        client.post("/ravi/follows/", {"agent": AGENT, "topic": "news/sport"}, format="json"),
        client.post("/ravi/topics/news/sport/emit/", {"text": "goal"}, format="json"),
        staff.post("/admin/ravi/schedule/add/", SCHEDULE),
        staff.post("/admin/ravi/source/add/", SOURCE),
    ]


def tenants() -> list[set[str]]:
    models: list[Any] = [Run, Session, Follow, Publication, Schedule, Source]
    return [set(model.objects.values_list("tenant", flat=True)) for model in models]


@pytest.mark.parametrize(
    ("given", "tenant"),
    [("acme", "acme"), (["acme"], "acme"), ({"a", "b"}, ""), ([], ""), (None, "")],
    ids=["one", "a list of one", "several", "none of them", "all"],
)
def test_every_surface_is_in_the_same_tenant(permitted, client, staff, tenant_of, given, tenant) -> None:
    tenant_of(given)

    assert [one.status_code for one in everything(client, staff)] == [201, 201, 201, 202, 302, 302]
    assert tenants() == [{tenant}] * 6


@pytest.mark.parametrize(
    "hook",
    [lambda user: 1 / 0, lambda user: 7, lambda user: "t" * 101, lambda user: "a\0b"],
    ids=["raises", "a number", "too long", "NUL"],
)
def test_a_hook_that_fails_lets_nobody_make_anything(client, staff, tenant_of, written, hook) -> None:
    tenant_of(hook)
    before = written()

    found = everything(client, staff)

    assert [one.status_code for one in found] == [403] * 6
    assert [error_of(one)["code"] for one in found[:4]] == ["forbidden"] * 4
    assert written() == before and not any(tenants())


def test_a_session_has_the_tenant_of_what_is_said_in_it(client: Any, user: Any, tenant_of: Any) -> None:
    tenant_of("acme")
    session = world.create_session(Session(owner=user, tenant="b", agent=AGENT))

    client.post("/ravi/runs/", {**RUN, "session": str(session.id)}, format="json")
    client.post(f"/ravi/sessions/{session.id}/messages/", {"text": "hi"}, format="json")

    assert list(Run.objects.values_list("tenant", flat=True)) == ["b", "b"]


def test_the_demos_reader_is_in_its_users_tenant(user: Any, tenant_of: Any) -> None:
    tenant_of("acme")
    first = feeds.reader_of(user)
    tenant_of("b")
    Run.objects.update(status="completed")

    assert (first.tenant, first.session.tenant) == ("acme", "acme")
    assert feeds.reader_of(user).tenant == "acme", "where it was at work before"


def test_a_superuser_is_asked_about_too_and_chooses_in_the_admin(root: Any, tenant_of: Any) -> None:
    tenant_of("acme")
    client_of(root).post("/ravi/runs/", RUN, format="json")
    logged_in(root).post("/admin/ravi/source/add/", {**SOURCE, "owner": "root", "tenant": "north"})

    assert (Run.objects.get().tenant, Source.objects.get().tenant) == ("acme", "north")
