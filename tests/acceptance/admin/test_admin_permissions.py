"""What operators do in the admin: with a run, by the services of the REST API, and with the agents of code."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.test import Client

from ravi_django.models import Agent, Run, Signal
from tests.support import world
from tests.support.inbox import html_of
from tests.support.journals import rows_of
from tests.support.runs import code, make_run
from tests.support.world import submit_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(transactional_db: None) -> Run:
    return submit_once("react/assistant", "hi", send=lambda run_id: None)[0]


def cancel_action(client: Client, *runs: Run, **more: Any) -> Any:
    chosen = {"action": "cancel_runs", "_selected_action": [str(run.pk) for run in runs], **more}
    return client.post("/admin/ravi/run/", chosen, follow=True)


@pytest.mark.parametrize("place", ["the list", "the page"])
def test_an_operator_cancels(operator, run, place) -> None:
    client = operator("view_run", "change_run")

    if place == "the list":
        assert b"Cancellation requested: 1 run." in cancel_action(client, run).content
    else:
        assert 'data-acts="ui/runs"' in page(client, run) and 'data-act="cancel"' in page(client, run)
        assert act(client, run, "cancel").status_code == 202

    run.refresh_from_db()
    assert run.status == "cancelled"
    assert run.cancel_reason == ("cancelled in the admin" if place == "the list" else "cancelled by an administrator")
    assert LogEntry.objects.get().object_id == str(run.pk)
    assert world.events_page(run.id)[1], "whoever watches is told"


def test_cancelling_twice_is_a_warning(operator, run) -> None:
    client = operator("change_run")

    cancel_action(client, run)

    assert b"Already ended: 1 run." in cancel_action(client, run).content
    assert act(client, run, "cancel").status_code == 409
    assert 'data-act="cancel"' not in page(client, run)


def test_all_runs_of_all_pages_are_not_cancelled_by_a_slip(operator, run) -> None:
    html = cancel_action(operator("change_run"), run, select_across="1").content

    assert b"one page at a time" in html
    run.refresh_from_db()
    assert run.status == "pending"


def test_who_may_view_runs_reads_their_entries_and_nothing_else(operator, run, driven) -> None:
    viewer = operator("view_run")
    places = ["run/", f"run/{driven(['ok']).pk}/change/", f"session/{run.session_id}/change/"]

    assert [viewer.get(f"/admin/ravi/{place}").status_code for place in places] == [200, 302, 403]
    assert 'data-act="' not in page(viewer, run) and act(viewer, run, "cancel").status_code == 404


def test_what_is_not_there_is_said_so(root) -> None:
    for address in ("/admin/ravi/run/nonsense/change/", f"/admin/ravi/run/{'0' * 32}/change/"):
        assert root.get(address).url == "/admin/"


def test_an_operator_switches_an_agent_off_and_nothing_else(operator) -> None:
    world.sync_agents()
    agent = Agent.objects.get(address="react/assistant")
    spec = agent.spec

    operator("view_agent", "change_agent").post(
        f"/admin/ravi/agent/{agent.pk}/change/", {"address": "react/other", "spec": "{}", "source": "admin"}
    )

    agent.refresh_from_db()
    assert (agent.enabled, agent.address, agent.spec, agent.source) == (False, "react/assistant", spec, "code")


def test_the_catalogue_follows_the_code_and_leaves_the_switch_alone() -> None:
    world.sync_agents()
    Agent.objects.filter(address="react/assistant").update(enabled=False, spec={}, description="old")

    assert world.sync_agents() == ["react/assistant"]
    assert world.sync_agents() == []
    agent = Agent.objects.get(address="react/assistant")
    assert (agent.enabled, agent.spec["class"], agent.description) == (False, "ReActAgent", "")


def test_an_agent_that_cannot_describe_itself_stops_no_migration(driven) -> None:
    from ravi_django import register
    from ravi_django.agents import ReActAgent
    from ravi_django.testing import ScriptedModel

    agent = register(ReActAgent("mute", model=ScriptedModel("hi")))
    agent.spec = lambda: 1 / 0

    world.sync_after_migrate("default", apps)

    assert Agent.objects.get(address="react/mute").spec == {"class": "ReActAgent"}


@pytest.fixture
def failed() -> Run:
    async def nothing(ctx: Any, inbox: Any) -> None: ...

    code(nothing)
    made = make_run(status="failed")
    rows_of(made, (0, 1, {"kind": "llm.call", "name": "gpt", "path": "1"}))
    made.refresh_from_db()
    return made


def act(client: Any, run: Run, action: str, **fields: Any) -> Any:
    return client.post(f"/ravi/ui/runs/{run.pk}/{action}/", fields, "application/json")


def page(client: Any, run: Run) -> str:
    return html_of(client.get(f"/ravi/ui/runs/{run.pk}/"))


def test_an_operator_retries_forks_and_signals(root, failed) -> None:
    assert act(root, failed, "fork", after_seq=1).status_code == 201
    assert act(root, failed, "retry").status_code == 202
    assert act(root, failed, "signals", name="go", payload={"paid": True}).status_code == 202

    after = Run.objects.get(id=failed.id)
    assert (after.status, Run.objects.filter(forked_from=failed.id).count()) == ("pending", 1)
    assert Signal.objects.get(run=failed).payload == {"paid": True}
    made = {*LogEntry.objects.values_list("object_id", "change_message")}
    assert made == {(str(failed.id), f"{name} on the run page.") for name in ("Fork", "Retry", "Signals")}


def test_an_operator_retries_failed_runs_in_the_list(operator, root, failed, run) -> None:
    chosen = {"action": "retry_runs", "_selected_action": [str(failed.pk), str(run.pk)]}

    html = root.post("/admin/ravi/run/", chosen, follow=True).content.decode()

    assert "Retried: 1 run." in html and "only a failed or a blocked run" in html
    failed.refresh_from_db()
    assert (failed.status, LogEntry.objects.get().object_id) == ("pending", str(failed.pk))


def test_the_services_say_why_not(operator, failed) -> None:
    client = operator("view_run", "change_run")

    assert "public_signals" in html_of(act(client, failed, "signals", name="go"), 403)
    assert "after_seq" in html_of(act(client, failed, "fork", after_seq="x"), 400)
    act(client, failed, "retry")
    assert "only a failed or a blocked run" in html_of(act(client, failed, "retry"), 409)


@pytest.mark.parametrize(
    ("codenames", "tenant", "opened", "changed"),
    [
        ((), "a", 404, 404),
        (("view_run",), "a", 200, 404),
        (("view_run",), "b", 404, 404),
        (("change_run",), "a", 200, 202),
        (("change_run",), "b", 404, 404),
    ],
)
def test_the_run_page_is_for_staff_as_the_admin_is(
    operator, settings, run, codenames: tuple[str, ...], tenant: str, opened: int, changed: int
) -> None:
    settings.RAVI = {**settings.RAVI, "TENANT_OF": f"{__name__}.tenant_a", "JOURNAL_FOR_OWNERS": False}
    Run.objects.filter(id=run.id).update(tenant=tenant)
    rows_of(run, (0, 1, {"kind": "tool.call", "name": "pay", "path": "1"}))
    client = operator(*codenames)

    got = client.get(f"/ravi/ui/runs/{run.pk}/")
    exported = client.get(f"/ravi/ui/runs/{run.pk}/export/")

    assert (got.status_code, exported.status_code) == (opened, opened)
    assert (">pay</a>" in got.content.decode()) is (opened == 200)
    assert act(client, run, "cancel").status_code == changed
    assert client.get(f"/ravi/runs/{run.pk}/").status_code == 404  # REST is for owners


def tenant_a(user: Any) -> str:
    return "a"
