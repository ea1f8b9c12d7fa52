"""What operators do with a run on its page in the admin, by the services of the REST API."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.models import Run, Signal
from tests.support.inbox import html_of
from tests.support.journals import rows_of
from tests.support.runs import code, make_run

pytestmark = pytest.mark.django_db(transaction=True)
ACTIONS = ("retry", "resume", "fork", "signal")


@pytest.fixture
def run() -> Run:
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


def test_an_operator_retries_forks_signals_and_resumes(root: Any, run: Run) -> None:
    assert f'href="/ravi/ui/runs/{run.pk}/"' in page(root, run)

    act(root, run, "fork", after_seq="1")
    act(root, run, "retry")
    act(root, run, "signal", name="go", payload='{"paid": true}')
    Run.objects.filter(id=run.id).update(paused_at=run.created_at)
    act(root, run, "resume")

    after = Run.objects.get(id=run.id)
    assert (after.status, after.paused_at, Run.objects.filter(forked_from=run.id).count()) == ("pending", None, 1)
    assert Signal.objects.get(run=run).payload == {"paid": True}


def test_the_services_say_why_not(operator: Any, run: Run) -> None:
    client = operator("view_run", "change_run")
    shown = page(client, run)
    assert f"/ravi/ui/runs/{run.pk}/" not in shown  # REST would not show it to them

    assert "public_signals" in act(client, run, "signal", name="go")
    assert "is not paused" in act(client, run, "resume")
    assert "after_seq" in act(client, run, "fork", after_seq="x")
    act(client, run, "retry")
    assert "only a failed or a blocked run" in act(client, run, "retry")


def test_who_may_only_look_sees_no_button_and_does_nothing(operator: Any, run: Run) -> None:
    client = operator("view_run")

    shown = page(client, run)
    for action in ACTIONS:
        assert f"/{action}/" not in shown
        assert client.post(f"/admin/ravi/run/{run.pk}/{action}/").status_code == 403
        assert client.get(f"/admin/ravi/run/{run.pk}/{action}/").status_code == 405
    assert Run.objects.get(id=run.id).status == "failed"
