"""`topics/…/emit/`, and whose followers it reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

import ravi_django
from ravi_django.kernel import TopicId
from ravi_django.models import Follow, Publication, Session
from tests.acceptance.api.api_support import AGENT, client_of, error_of, permit
from tests.support import world

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("permitted")]

TOPIC = "news/sport"
NAMED = {"agent": AGENT, "topic": TOPIC}
EMIT = "/ravi/topics/news/sport/emit/"


@pytest.fixture(autouse=True)
def hinted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    world.patch(monkeypatch, "fan_out_hint", found.append)
    return found


@pytest.fixture
def tenants(settings: Any) -> Callable[..., None]:
    """Let RAVI["TENANT_OF"] give each user these."""

    def give(**by_name: Any) -> None:
        settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: by_name[user.username]}

    return give


def post(client: APIClient, address: str = "/ravi/follows/", **body: Any) -> Any:
    return client.post(address, body, format="json")


def session_of(user: Any, tenant: str = "") -> Session:
    return world.create_session(Session(owner=user, tenant=tenant))


def test_what_is_emitted_goes_to_ones_tenants_followers(client: APIClient, user: Any, stranger: Any) -> None:
    ravi_django.follow(AGENT, TOPIC, user=stranger)
    ravi_django.follow(AGENT, TOPIC, user=user)
    ravi_django.follow(AGENT, TOPIC, user=user, tenant="acme")

    for body, kind in (
        *(({"data": data}, "data") for data in ({"by": "ann"}, [1, 2], False)),
        *(({"text": "goal", **more}, "chat") for more in ({}, {"data": None})),
    ):
        response = post(client, EMIT, **body)
        row = Publication.objects.latest("id")
        assert (response.status_code, response.json()) == (202, {"message": row.message_id, "followers": 2}), body
        assert (row.owner, row.tenant, row.body["payload"]["kind"]) == (user, "", kind), body


def test_a_namespace_comes_first(client: APIClient) -> None:
    ravi_django.follow(AGENT, TopicId("news", "sport", "uk"))

    assert post(client, EMIT, text="x").json()["followers"] == 0
    assert post(client, "/ravi/topics/uk/news/sport/emit/", text="x").json()["followers"] == 1


def test_an_id_makes_it_safe_to_repeat(client: APIClient, strange_client: APIClient, stranger: Any) -> None:
    ravi_django.follow(AGENT, TOPIC)
    first = post(client, EMIT, text="goal", id="g 1")
    ravi_django.follow(AGENT, TOPIC, user=None, tenant="")
    again = post(client, EMIT, text="goal", id="g 1")
    other = post(client, EMIT, text="own goal", id="g 1")
    permit(stranger, "emit_topic")
    theirs = post(strange_client, EMIT, text="theirs", id="g 1")

    assert first.json() == again.json() == {"message": "g 1", "followers": 1}
    assert (first.status_code, again.status_code, theirs.status_code) == (202, 202, 202)
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_mismatch")
    assert Publication.objects.count() == 2


def test_what_cannot_be_emitted(client: APIClient, written: Any) -> None:
    before = written()

    for body, status, field in (
        *(({}, 400, "data"), ({"data": None}, 400, "data"), ({"text": "a", "data": 1}, 400, "text")),
        *(({"text": bad}, 400, "text") for bad in ("", " \n", 7, "a\0b")),
        ({"data": {"a": ["\0"]}}, 400, "data"),
        *(({"text": "x" * 262_200}, 413, "text"), ({"data": {"x": "x" * 262_200}}, 413, "data")),
        *(({"text": "x", "id": bad}, 400, "id") for bad in ("", "i" * 201, 7)),
        *(({"text": "x", "session": "nonsense"}, 400, "session"), ({"text": "x", "tenant": "acme"}, 400, "tenant")),
    ):
        response = post(client, EMIT, **body)
        assert (response.status_code, error_of(response).get("field")) == (status, field), str(body)[:80]
    for path in ("news/ü", "a b/c", "n%00/sport", f"news/{'s' * 101}", "ü/news/sport"):
        for body in ({"text": "x"}, {"nonsense": 1}):
            response = post(client, f"/ravi/topics/{path}/emit/", **body)
            assert (response.status_code, error_of(response)["code"]) == (404, "not_found"), path
    assert written() == before


def test_a_session_gives_its_tenant_to_who_is_still_of_it(client: APIClient, user: Any, tenants: Any) -> None:
    session = session_of(user, "b")
    tenants(ann={"a", "b"})
    assert post(client, EMIT, text="x", session=str(session.id)).status_code == 202
    assert post(client, **NAMED, session=str(session.id)).status_code == 201
    assert Publication.objects.get().tenant == Follow.objects.get().tenant == "b"

    tenants(ann={"a"})

    assert post(client, EMIT, text="y", session=str(session.id)).status_code == 404
    assert post(client, EMIT, text="y", session=str(session_of(user).id)).status_code == 202
    assert Publication.objects.latest("id").tenant == "a"


def test_a_superuser_stays_in_his_own_tenant(root: Any, tenants: Any) -> None:
    ravi_django.follow(AGENT, TOPIC, tenant="other")
    tenants(root="acme")

    assert post(client_of(root), EMIT, text="x").json()["followers"] == 0
    assert Publication.objects.get().tenant == "acme"
