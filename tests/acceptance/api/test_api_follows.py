"""`follows/` and `topics/…/emit/`, and whose followers it reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

import ravi_django
from ravi_django.models import Agent, Follow, Publication, Session
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


def post(client: APIClient, address: str = "/ravi/follows/", **body: Any) -> Any:
    return client.post(address, body, format="json")


def session_of(user: Any, tenant: str = "") -> Session:
    return world.create_session(Session(owner=user, tenant=tenant))


def test_a_follow_is_made_once(client: APIClient, user: Any) -> None:
    first = post(client, **NAMED)
    second = post(client, **NAMED)

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    row = Follow.objects.get()
    shown = first.json()
    assert (shown["id"], shown["agent"], shown["topic"]) == (str(row.id), AGENT, TOPIC)
    assert (shown["session"], shown["home"], shown["every_s"], shown["metadata"]) == (None, None, 0, {})
    assert (shown["last_at"], shown["created_at"][-1]) == (None, "Z")
    assert (row.owner, row.tenant) == (user, "")


def test_a_bad_body_or_filter_names_the_field(client: APIClient, written: Any) -> None:
    before = written()

    for field, status, values in (
        ("agent", 400, ["nonsense", 7, None]),
        ("agent", 404, ["react/nobody"]),
        ("topic", 400, ["nonsense", "a/b/c/d", "a b/c", "news/ü", [TOPIC], "news/" + "s" * 101, "news/sp\0rt", None]),
        *(("session", 400, ["n" * 201]), ("session", 404, [str(uuid4())])),
        ("every_s", 400, [-1, "60", 10**12]),
        ("metadata", 400, [[], {"a": "x" * 20_000}]),
        *(("owner", 400, [1]), ("tenant", 400, ["acme"])),
    ):
        for value in values:
            response = post(client, **{**NAMED, field: value})
            assert (response.status_code, error_of(response).get("field")) == (status, field), value
    for query in ("topic=nonsense", "agent=nonsense", "topic=a%00/b", "limit=0", "cursor=x"):
        response = client.get(f"/ravi/follows/?{query}")
        assert (response.status_code, error_of(response)["field"]) == (400, query.partition("=")[0]), query
    Agent.objects.create(address=AGENT, enabled=False)
    response = post(client, **NAMED)
    assert (response.status_code, error_of(response)["field"]) == (404, "agent")
    assert written() == before


def test_somebody_elses_session_is_404_also_for_a_superuser(user: Any, root: Any, stranger: Any) -> None:
    session = session_of(stranger, "acme")
    ravi_django.follow(AGENT, TOPIC, tenant="acme")

    for client in (client_of(user), client_of(root)):
        responses = [
            post(client, **NAMED, session=str(session.id)),
            post(client, EMIT, text="x", session=str(session.id)),
            client.delete(f"/ravi/follows/?agent={AGENT}&topic={TOPIC}&session={session.id}"),
        ]
        assert [(one.status_code, error_of(one).get("field")) for one in responses] == [(404, "session")] * 3
    assert not Publication.objects.exists()


def test_ones_follows_come_newest_first_by_page_and_filter(client, user, stranger, django_assert_num_queries) -> None:
    ravi_django.follow(AGENT, TOPIC, user=stranger)
    ravi_django.follow(AGENT, TOPIC)
    for topic in ("news/a", "news/b", "uk/news/a"):
        post(client, agent=AGENT, topic=topic)

    def listed(query: str = "") -> list[str]:
        return [one["topic"] for one in client.get(f"/ravi/follows/{query}").json()["results"]]

    with django_assert_num_queries(1):
        assert listed() == ["uk/news/a", "news/b", "news/a"]
    assert listed("?topic=news/a") == ["news/a"]
    assert listed("?topic=uk/news/a") == ["uk/news/a"]
    assert listed(f"?agent={AGENT}&topic=news/b") == ["news/b"]
    assert listed("?agent=react/other") == []
    page = client.get("/ravi/follows/?limit=2").json()
    assert [one["topic"] for one in page["results"]] == ["uk/news/a", "news/b"]
    assert [one["topic"] for one in client.get(page["next"]).json()["results"]] == ["news/a"]


def test_a_follow_is_read_and_ended(client: APIClient, strange_client: APIClient) -> None:
    shown = post(client, **NAMED).json()
    address = f"/ravi/follows/{shown['id']}/"

    assert client.get(address).json() == shown
    assert strange_client.get(address).status_code == 404
    assert strange_client.delete(address).status_code == 404
    assert Follow.objects.exists()
    assert (client.delete(address).status_code, client.delete(address).status_code) == (204, 404)
    assert not Follow.objects.exists()


@pytest.mark.parametrize("where", ["query", "body"])
def test_a_follow_is_ended_by_its_name(client: APIClient, user: Any, stranger: Any, where: str) -> None:
    session = session_of(user)
    ravi_django.follow(AGENT, TOPIC, user=stranger)
    post(client, **NAMED)
    post(client, **NAMED, session=str(session.id))

    def delete(**named: str) -> Any:
        if where == "body":
            return client.delete("/ravi/follows/", named, format="json")
        return client.delete("/ravi/follows/?" + "&".join(f"{name}={value}" for name, value in named.items()))

    assert delete(**NAMED).status_code == 204
    assert set(Follow.objects.values_list("owner", "session")) == {(stranger.pk, None), (user.pk, session.id)}
    again = delete(**NAMED)
    assert (again.status_code, error_of(again)["code"]) == (404, "not_found")
    assert delete(**NAMED, session=str(session.id)).status_code == 204
    assert error_of(delete(agent=AGENT))["field"] == "topic"
    assert error_of(delete(**NAMED, tenant="x"))["field"] == "tenant"
    assert Follow.objects.get().owner == stranger


# ---------------------------------------------------------------------------------------------------- emit


@pytest.fixture
def tenants(settings: Any) -> Callable[..., None]:
    """Let RAVI["TENANT_OF"] give each user these."""

    def give(**by_name: Any) -> None:
        settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: by_name[user.username]}

    return give


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
