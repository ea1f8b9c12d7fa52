"""`topics/…/emit/`, and whose followers it reaches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
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


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"text": "goal"}, "chat"),
        ({"data": {"by": "ann"}}, "data"),
        ({"data": [1, 2]}, "data"),
        ({"data": False}, "data"),
        ({"text": "goal", "data": None}, "chat"),
    ],
    ids=str,
)
def test_what_is_emitted_goes_to_ones_tenants_followers(
    client: APIClient, user: Any, stranger: Any, body: dict[str, Any], kind: str
) -> None:
    ravi_django.follow(AGENT, TOPIC, user=stranger)
    ravi_django.follow(AGENT, TOPIC, user=user)
    ravi_django.follow(AGENT, TOPIC, user=user, tenant="acme")

    response = post(client, EMIT, **body)

    row = Publication.objects.get()
    assert (response.status_code, response.json()) == (202, {"message": row.message_id, "followers": 2})
    assert (row.owner, row.tenant, row.body["payload"]["kind"]) == (user, "", kind)


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


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 400, "data"),
        ({"data": None}, 400, "data"),
        ({"text": "a", "data": 1}, 400, "text"),
        ({"text": ""}, 400, "text"),
        ({"text": " \n"}, 400, "text"),
        ({"text": 7}, 400, "text"),
        ({"text": "a\0b"}, 400, "text"),
        ({"data": {"a": ["\0"]}}, 400, "data"),
        ({"text": "x" * 262_200}, 413, "text"),
        ({"data": {"x": "x" * 262_200}}, 413, "data"),
        ({"text": "x", "id": ""}, 400, "id"),
        ({"text": "x", "id": "i" * 201}, 400, "id"),
        ({"text": "x", "id": 7}, 400, "id"),
        ({"text": "x", "session": "nonsense"}, 400, "session"),
        ({"text": "x", "tenant": "acme"}, 400, "tenant"),
    ],
    ids=lambda given: "" if isinstance(given, dict) else str(given),
)
def test_what_cannot_be_emitted(client: APIClient, written: Any, body: dict[str, Any], status: int, field: str) -> None:
    before = written()

    response = post(client, EMIT, **body)

    assert (response.status_code, error_of(response).get("field")) == (status, field)
    assert written() == before


@pytest.mark.parametrize("path", ["news/ü", "a b/c", "n%00/sport", f"news/{'s' * 101}", "ü/news/sport"])
def test_an_address_of_no_topic_is_404(client: APIClient, path: str) -> None:
    for body in ({"text": "x"}, {"nonsense": 1}):
        response = post(client, f"/ravi/topics/{path}/emit/", **body)

        assert (response.status_code, error_of(response)["code"]) == (404, "not_found")


def test_a_topic_of_no_such_form_in_a_body_is_400(client: APIClient) -> None:
    response = post(client, agent=AGENT, topic="a b/c")

    assert (response.status_code, error_of(response)["field"]) == (400, "topic")


def test_follows_and_emits_are_in_the_users_one_tenant(client: APIClient, user: Any, tenants: Any) -> None:
    tenants(ann="acme")
    ravi_django.follow(AGENT, "news/other", user=user)

    assert post(client, **NAMED).status_code == 201
    ravi_django.follow(AGENT, TOPIC, user=user)
    assert post(client, EMIT, text="x").json()["followers"] == 1
    assert Follow.objects.get(topic=TOPIC, tenant="acme").owner == user
    assert Publication.objects.get().tenant == "acme"


@pytest.mark.parametrize(
    ("given", "tenant"),
    [({"a", "b"}, ""), (set(), ""), (None, ""), (["acme"], "acme")],
    ids=["several", "none of them", "not said", "one"],
)
def test_several_tenants_are_none(client: APIClient, tenants: Any, given: Any, tenant: str) -> None:
    tenants(ann=given)

    post(client, EMIT, text="x")

    assert Publication.objects.get().tenant == tenant


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


@pytest.mark.parametrize("hook", [lambda user: 1 / 0, lambda user: 7, lambda user: [None]])
def test_a_hook_that_fails_lets_nobody_follow_or_emit(
    client: APIClient, settings: Any, written: Any, hook: Any
) -> None:
    settings.RAVI = {**settings.RAVI, "TENANT_OF": hook}
    before = written()

    responses = [post(client, **NAMED), post(client, EMIT, text="x")]

    assert [(one.status_code, error_of(one)["code"]) for one in responses] == [(403, "forbidden")] * 2
    assert written() == before


# ---------------------------------------------------------------------------------------------- whatever is posted

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["text", "data", "id", "session", "agent", "topic", "every_s", "metadata"]) | st.text(
    max_size=5
)
GIVEN = st.sampled_from([AGENT, "news/sport", "news", "a/b/c", 60, {"text": "x"}]) | JSON


@hypothesis.settings(
    max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(address=st.sampled_from([EMIT, "/ravi/follows/"]), body=st.dictionaries(NAMES, GIVEN, max_size=4))
def test_whatever_is_posted_is_no_fault_of_ours(client: APIClient, address: str, body: dict[str, Any]) -> None:
    response = client.post(address, json.dumps(body), content_type="application/json")

    assert response.status_code in (200, 201, 202, 400, 404, 409), response.content
    if response.status_code >= 400:
        error_of(response)
