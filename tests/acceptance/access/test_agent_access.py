"""RAVI["ACCESS_POLICY"] and `register(agent, access=…)`: who may run an agent, over every surface."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from rest_framework.test import APIClient

import ravi_django
from ravi_django import access, register
from ravi_django.agents import ReActAgent
from ravi_django.kernel import AgentNotFoundError, TopicId
from ravi_django.models import InboxMessage, Run
from ravi_django.site_checks import check_access_policy
from ravi_django.testing import ScriptedModel
from ravi_django.ws.commands import Say
from tests.acceptance.api.api_support import client_of, error_of, permit
from tests.support import world
from tests.support.world import consumer_submit, submit

pytestmark = pytest.mark.django_db

ADDRESS = "react/guarded"


@pytest.fixture(autouse=True)
def open_agents() -> None:
    """The real default holds here: an agent is private."""


@pytest.fixture
def user() -> Any:
    return get_user_model().objects.create_user("ann")


def guard(**options: Any) -> None:
    register(ReActAgent("guarded", model=ScriptedModel("ok")), **options)


def may_run(user: Any) -> bool:
    return access.may_run(get_user_model().objects.get(pk=user.pk), world.specs_find(ADDRESS))


def calls(client: APIClient, run: Run) -> dict[str, Any]:
    """Every call that starts or continues a run of the agent."""
    post = {
        "runs/": {"agent": ADDRESS, "input": "hi"},
        "sessions/": {"agent": ADDRESS},
        f"sessions/{run.session_id}/messages/": {"text": "hi", "agent": ADDRESS},
        f"runs/{run.id}/retry/": {},
        f"runs/{run.id}/fork/": {"after_seq": 1},
        f"runs/{run.id}/signals/": {"name": "paid"},
        "follows/": {"agent": ADDRESS, "topic": "news/sport"},
    }
    found = {path: client.post(f"/ravi/{path}", body, format="json") for path, body in post.items()}
    return found | {"agents/": client.get(f"/ravi/agents/{ADDRESS}/")}


def test_a_private_agent_is_absent_on_every_surface(user: Any) -> None:
    guard()
    run = submit(ADDRESS, "hi", user=user)  # Python is not asked
    client = client_of(user)

    refused = calls(client, run)

    assert {path: (one.status_code, error_of(one)["code"]) for path, one in refused.items()} == dict.fromkeys(
        refused, (404, "not_found")
    )
    assert ADDRESS not in str(client.get("/ravi/agents/").json())
    with pytest.raises(AgentNotFoundError):  # the socket's way
        consumer_submit(ADDRESS, Say(type="message", text="hi"), run.session_id, user, "key")
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("given", "codenames", "staff", "allowed"),
    [
        ("private", [], True, False),
        ("private", ["run_agent"], False, True),
        ("staff", [], False, False),
        ("staff", [], True, True),
        ("authenticated", [], False, True),
        ("perm:ravi.emit_topic", [], False, False),
        ("perm:ravi.emit_topic", ["emit_topic"], False, True),
        (lambda user, agent: user.username == "ann" and agent.address == ADDRESS, [], False, True),
        (lambda user, agent: "yes", [], False, False),
        (lambda user, agent: 1 / 0, [], False, False),
    ],
)
def test_access_says_who_may_run(user: Any, given: Any, codenames: list[str], staff: bool, allowed: bool) -> None:
    guard(access=given)
    user.is_staff = staff
    user.save()
    permit(user, *codenames)

    assert may_run(user) is allowed
    run = submit(ADDRESS, "hi", user=user)
    client = client_of(get_user_model().objects.get(pk=user.pk))
    assert all((one.status_code != 404) is allowed for one in calls(client, run).values())


class Truthy(access.AccessPolicy):
    """An `async def` by mistake returns something that is not False."""

    def may_run(self, user: Any, agent: Any) -> Any:
        return "yes"

    def may_emit(self, user: Any, topic: TopicId) -> Any:
        raise ZeroDivisionError


def test_only_true_of_the_sites_policy_allows(user: Any, settings: Any) -> None:
    guard(access="authenticated")
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": f"{__name__}.Truthy"}

    assert check_access_policy() == []
    assert not may_run(user)
    assert client_of(user).post(f"/ravi/topics/news/{user.pk}/emit/", {"text": "x"}, format="json").status_code == 403


@pytest.mark.parametrize("path", ["no.such.module", "builtins.dict", f"{__name__}.guard", 7])
def test_a_policy_that_cannot_be_loaded_is_an_error(settings: Any, path: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": path}

    assert [found.id for found in check_access_policy()] == ["ravi.E016"]


def test_a_site_whose_agents_are_all_private_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "agents_by_address", {})
    world.patch(monkeypatch, "registry_access", {})
    guard()

    (note,) = check_access_policy()
    assert (note.id, note.msg) == ("ravi.I001", "all agents are private: register(agent, access=…)")


def test_own_topics_and_listed_signals_need_no_permission(user: Any) -> None:
    guard(access="authenticated")
    run = submit(ADDRESS, "hi", user=user)
    world.agents_by_address[ADDRESS].public_signals = frozenset({"paid"})
    client = client_of(user)

    def emit(source: Any) -> int:
        return client.post(f"/ravi/topics/news/{source}/emit/", {"text": "x"}, format="json").status_code

    def signal(name: str) -> int:
        return client.post(f"/ravi/runs/{run.id}/signals/", {"name": name}, format="json").status_code

    assert (emit(user.pk), emit("sport")) == (202, 403)
    assert [signal(name) for name in ("paid", "refunded", "child:1", "reply:1")] == [202, 403, 403, 403]
    permit(user, "signal_run")
    client = client_of(get_user_model().objects.get(pk=user.pk))
    assert [signal(name) for name in ("refunded", "child:1", "reply:1")] == [202, 403, 403]


def test_a_priority_above_normal_takes_a_permission(user: Any) -> None:
    guard(access="authenticated")

    def submit_as(priority: str) -> int:
        client = client_of(get_user_model().objects.get(pk=user.pk))
        body = {"agent": ADDRESS, "input": "hi", "priority": priority}
        return client.post("/ravi/runs/", body, format="json").status_code

    assert [submit_as(priority) for priority in ("low", "normal", "high", "critical")] == [201, 201, 403, 403]
    permit(user, "choose_priority")
    assert submit_as("critical") == 201


def test_a_list_of_many_agents_reads_permissions_once(user: Any, django_assert_max_num_queries: Any) -> None:
    for number in range(200):
        register(ReActAgent(f"many{number}", model=ScriptedModel("ok")), access="staff" if number % 2 else "private")

    with django_assert_max_num_queries(3):
        assert client_of(user).get("/ravi/agents/").status_code == 200


class Forwarding(access.AccessPolicy):
    """A policy of a site's own is asked about each delivery."""

    def may_run(self, user: Any, agent: Any) -> bool:
        return super().may_run(user, agent)


@pytest.mark.parametrize("policy", ["ravi_django.access.AccessPolicy", f"{__name__}.Forwarding"])
@pytest.mark.parametrize("has_run", [False, True])
def test_a_delivery_asks_on_behalf_of_the_follows_owner(user: Any, settings: Any, policy: str, has_run: bool) -> None:
    """`has_run`: the message goes to a run that is there already, else to a new one."""
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": policy}
    guard(access="authenticated")
    register(ReActAgent("open", model=ScriptedModel("ok")), access="authenticated")
    for agent in (ADDRESS, "react/open"):
        session = submit(agent, "hi", user=user).session_id if has_run else None
        ravi_django.follow(agent, "news/sport", user=user, session=session)
    before = InboxMessage.objects.count()
    world.registry_access[ADDRESS] = "private"

    world.fan_out_run(ravi_django.emit("news/sport", "goal").id)

    told = InboxMessage.objects.order_by("id")[before:]
    assert [message.run.agent for message in told] == ["react/open"]
