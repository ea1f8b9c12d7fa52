"""Runs that start later: rows that are queued until a time, beside the other messages of their conversation."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from rest_framework.test import APIClient

from ravi_django import submit
from ravi_django.kernel import InvalidInputError
from ravi_django.models import Run, Status
from ravi_django.testing import run_until_idle
from tests.support.inbox import logged_in
from tests.support.runs import code

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def agent():
    async def story(ctx, inbox):
        if "wait" in inbox[0].payload.message.text:
            await ctx.sleep_until_signal("go")
        return inbox[0].payload.message.text

    return code(story)


def swept():
    call_command("ravi_sweep")
    run_until_idle()
    return {run.id: str(run.status) for run in Run.objects.all()}


@pytest.mark.parametrize("as_given", [lambda now: now + HOUR, lambda now: HOUR, lambda now: 3600])
def test_a_later_run_waits_for_its_time_and_does_not_hold_up_its_conversation(clock, as_given):
    later = submit("test/code", "later", start_at=as_given(clock.now))
    assert (later.status, later.start_at) == (Status.QUEUED, clock.now + HOUR)

    now = submit("test/code", "now", session=later.session, on_busy="reject")
    assert swept() == {later.id: "queued", now.id: "completed"}

    clock.advance(3600)
    assert swept()[later.id] == "completed"
    later.refresh_from_db()
    assert (later.output, later.start_at) == ("later", None)


def test_a_due_run_starts_after_the_run_at_work_and_interrupts_nothing(clock):
    at_work = submit("test/code", "wait")
    run_until_idle()
    later = submit("test/code", "later", session=at_work.session, start_at=HOUR, on_busy="interrupt")
    clock.advance(7200)
    assert swept() == {at_work.id: "suspended", later.id: "queued"}

    at_work.cancel()
    assert swept() == {at_work.id: "cancelled", later.id: "completed"}


def test_it_is_cancelled_before_it_starts_and_a_past_time_starts_at_once(clock):
    later = submit("test/code", "later", start_at=HOUR)
    later.cancel()
    past = submit("test/code", "past", start_at=clock.now - HOUR)
    assert past.status == Status.PENDING
    clock.advance(7200)
    assert swept() == {later.id: "cancelled", past.id: "completed"}


@pytest.mark.parametrize(
    ("start_at", "fix"),
    [
        (datetime(2030, 1, 1), "make_aware"),
        (datetime(3000, 1, 1, tzinfo=UTC), "366 days"),
        (timedelta(days=400), "below"),
        ("tomorrow", "seconds"),
    ],
    ids=["naive", "far", "long", "text"],
)
def test_a_wrong_start_is_refused_with_the_fix(clock, start_at, fix):
    with pytest.raises(InvalidInputError, match=fix) as wrong:
        submit("test/code", "hi", start_at=start_at)
    assert (wrong.value.field, Run.objects.count()) == ("start_at", 0)


def test_rest_starts_a_run_later_and_the_pages_show_when(clock, admin_user):
    client = APIClient()
    client.force_login(admin_user)
    body = {"agent": "test/code", "input": "hi", "start_at": (clock.now + HOUR).isoformat(), "idempotency_key": "a"}
    response = client.post("/ravi/runs/", body, format="json")
    assert (response.status_code, response.json()["status"]) == (201, "queued")
    assert client.post("/ravi/runs/", body, format="json").json()["id"] == response.json()["id"]
    assert datetime.fromisoformat(response.json()["start_at"]) == clock.now + HOUR

    run_page = logged_in(admin_user).get(f"/ravi/ui/runs/{response.json()['id']}/").content.decode()
    assert "Starts at" in run_page
    assert "starts at" in logged_in(admin_user).get("/admin/ravi/run/").content.decode()
