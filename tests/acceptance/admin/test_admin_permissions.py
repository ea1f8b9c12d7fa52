"""What operators do in the admin: with a run, by the services of the REST API, and with the agents of code."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.test import Client

from ravi_django.models import Agent, JournalEntry, Run, Signal
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
        assert b"Cancel run" in client.get(f"/admin/ravi/run/{run.pk}/change/").content
        client.post(f"/admin/ravi/run/{run.pk}/cancel/")

    run.refresh_from_db()
    assert run.status == "cancelled"
    assert run.cancel_reason == "cancelled in the admin"
    assert LogEntry.objects.get().object_id == str(run.pk)
    assert world.events_page(run.id)[1], "whoever watches is told"


def test_cancelling_twice_is_a_warning(operator, run) -> None:
    client = operator("change_run")

    cancel_action(client, run)

    assert b"Already ended: 1 run." in cancel_action(client, run).content
    assert b"had already ended" in client.post(f"/admin/ravi/run/{run.pk}/cancel/", follow=True).content
    assert b"Cancel run" not in client.get(f"/admin/ravi/run/{run.pk}/change/").content


def test_all_runs_of_all_pages_are_not_cancelled_by_a_slip(operator, run) -> None:
    html = cancel_action(operator("change_run"), run, select_across="1").content

    assert b"one page at a time" in html
    run.refresh_from_db()
    assert run.status == "pending"


def test_who_may_view_runs_reads_their_entries_and_nothing_else(operator, run, driven) -> None:
    entry = JournalEntry.objects.filter(run=driven(["ok"])).first()
    viewer = operator("view_run")
    places = ["run/", f"run/{run.pk}/change/", f"journalentry/{entry.pk}/change/", f"session/{run.session_id}/change/"]

    assert [viewer.get(f"/admin/ravi/{place}").status_code for place in places] == [200, 200, 200, 403]
    assert viewer.get("/admin/ravi/journalentry/").url == "/admin/ravi/run/"


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


def act(client: Any, run: Run, action: str, **fields: Any) -> str:
    return html_of(client.post(f"/admin/ravi/run/{run.pk}/{action}/", fields, follow=True))


def page(client: Any, run: Run) -> str:
    return html_of(client.get(f"/admin/ravi/run/{run.pk}/change/"))


def test_an_operator_retries_forks_and_signals(root, failed) -> None:
    assert f'href="/ravi/ui/runs/{failed.pk}/"' in page(root, failed)

    act(root, failed, "fork", after_seq="1")
    act(root, failed, "retry")
    act(root, failed, "signal", name="go", payload='{"paid": true}')

    after = Run.objects.get(id=failed.id)
    assert (after.status, Run.objects.filter(forked_from=failed.id).count()) == ("pending", 1)
    assert Signal.objects.get(run=failed).payload == {"paid": True}


def test_the_services_say_why_not(operator, failed) -> None:
    client = operator("view_run", "change_run")
    assert f"/ravi/ui/runs/{failed.pk}/" not in page(client, failed)  # REST would not show it to them

    assert "public_signals" in act(client, failed, "signal", name="go")
    assert "after_seq" in act(client, failed, "fork", after_seq="x")
    act(client, failed, "retry")
    assert "only a failed or a blocked run" in act(client, failed, "retry")
