"""`follows/`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

import ravi_django
from ravi_django import access
from ravi_django.kernel import TopicId
from ravi_django.models import Agent, Follow, Publication, Session
from tests.acceptance.api.api_support import AGENT, client_of, error_of
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


def test_what_is_said_anew_is_taken(client: APIClient) -> None:
    post(client, **NAMED, every_s=60, metadata={"likes": "tennis"})

    assert post(client, **NAMED).json()["every_s"] == 60
    changed = post(client, **NAMED, every_s=0, metadata={}).json()

    assert (changed["every_s"], changed["metadata"]) == (0, {})
    assert Follow.objects.get().metadata == {}


def test_a_follow_of_a_session_is_another(client: APIClient, user: Any) -> None:
    session = session_of(user)
    post(client, **NAMED)

    shown = post(client, **NAMED, session=str(session.id))

    assert shown.status_code == 201
    assert (shown.json()["session"], shown.json()["home"]) == (str(session.id), str(session.id))
    assert Follow.objects.count() == 2


def test_a_bad_body_or_filter_names_the_field(client: APIClient, written: Any) -> None:
    before = written()

    for field, status, values in (
        ("agent", 400, ["nonsense", 7, None]),
        ("agent", 404, ["react/nobody"]),
        ("topic", 400, ["nonsense", "a/b/c/d", "a b/c", "news/ü", [TOPIC], "news/" + "s" * 101, "news/sp\0rt", None]),
        *(("session", 400, ["nonsense"]), ("session", 404, [str(uuid4())])),
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


def test_ones_follows_come_newest_first_by_page_and_filter(
    client: APIClient, user: Any, stranger: Any, django_assert_num_queries: Any
) -> None:
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


def test_the_sites_policy_refuses_with_403(
    client: APIClient, user: Any, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Policy(access.AccessPolicy):
        def may_follow(self, user: Any, agent: Any, topic: Any) -> bool:
            asked.append((user, str(agent), topic))
            return topic.source != "sport"

        def may_emit(self, user: Any, topic: Any) -> bool:
            asked.append((user, topic))
            return topic.source != "sport"

    monkeypatch.setattr(access, "policy", Policy)
    before = written()

    refused = [post(client, **NAMED), post(client, EMIT, text="x")]

    assert [(one.status_code, error_of(one)["code"]) for one in refused] == [(403, "forbidden")] * 2
    assert written() == before
    assert asked == [(user, AGENT, TopicId("news", "sport")), (user, TopicId("news", "sport"))]
    assert post(client, agent=AGENT, topic="news/other").status_code == 201
    assert post(client, "/ravi/topics/news/other/emit/", text="x").status_code == 202


def test_what_is_answered_is_what_is_described(client: APIClient) -> None:
    described = client.get("/ravi/schema/").json()["components"]["schemas"]

    assert set(described["Follow"]["properties"]) == set(post(client, **NAMED).json())
    assert set(described["Emitted"]["properties"]) == set(post(client, EMIT, text="x").json())
