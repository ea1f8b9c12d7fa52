"""Schedules in the admin: made, looked at, switched, run now; nobody has runs made in the name of another."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model

from ravi_django import register, schedule
from ravi_django.agents import ReActAgent
from ravi_django.models import Run, Schedule, ScheduleTick, Session
from ravi_django.testing import FakeClock, ScriptedModel
from tests.acceptance.api.api_support import permit
from tests.support import world
from tests.support.cases import case

pytestmark = pytest.mark.django_db(transaction=True)

ADD, LIST = "/admin/ravi/schedule/add/", "/admin/ravi/schedule/"
ALL = ("view_schedule", "add_schedule", "change_schedule", "delete_schedule")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    world.silence(monkeypatch, "dispatch_send")
    with FakeClock() as clock:
        yield clock


def form(**given):
    return {
        "name": "daily", "agent": "react/assistant", "input": "What is new?", "cron": "0 9 * * MON-FRI",
        "timezone": "Asia/Kathmandu", "jitter_s": "0", "catch_up": "one", "priority": "normal", "enabled": "on",
        "metadata": "", "budget": "", **given,
    }  # fmt: skip


def made(name="daily", **more) -> Schedule:
    return schedule("react/assistant", "hi", **{"name": name, "every": 60, **more})


def page_of(row) -> str:
    return f"/admin/ravi/schedule/{row.pk}/change/"


def user_of(client):
    return get_user_model().objects.get(pk=client.session["_auth_user_id"])


def act(client, action, *rows, **more):
    chosen = {"action": action, "_selected_action": [str(row.pk) for row in rows], **more}
    return client.post(LIST, chosen, follow=True).content.decode()


# ------------------------------------------------------------------------------------------------- making one


def test_it_is_made_in_the_name_of_who_makes_it(operator):
    client = operator(*ALL)
    stranger = get_user_model().objects.create_user("stranger")

    response = client.post(ADD, form(owner="stranger", tenant="acme"))

    assert response.status_code == 302, response.content
    row = Schedule.objects.get()
    assert (row.owner, row.tenant, row.metadata, row.budget) == (user_of(client), "", {}, None)
    assert row.owner != stranger
    assert row.next_at == datetime(2030, 1, 1, 3, 15, tzinfo=UTC)
    assert b'name="owner"' not in client.get(page_of(row)).content
    assert LogEntry.objects.get().object_id == str(row.pk)


def test_an_agent_that_its_owner_may_not_run_is_refused(operator, root):
    register(ReActAgent("hushed", model=ScriptedModel(["ok"])), access="private")
    ann = get_user_model().objects.create_user("ann")
    given = form(agent="react/hushed")

    for client, whose, said in (
        (operator(*ALL), {}, "agent react/hushed"),
        (root, {"owner": "ann"}, "may not run react/hushed"),
    ):
        (fault,) = client.post(ADD, given | whose).context["adminform"].form.errors["agent"]
        assert said in fault
    assert not Schedule.objects.exists()

    permit(ann, "run_agent")
    assert root.post(ADD, given | {"owner": "ann"}).status_code == 302
    assert root.post(ADD, given | {"owner": ""}).status_code == 302  # the system's runs are asked nothing


def test_the_form_names_its_fields_and_offers_the_agents_that_one_may_see(operator, root):
    register(ReActAgent("hushed", model=ScriptedModel(["ok"])), access="private")
    gone = made("gone")
    Schedule.objects.update(agent="react/gone")

    html = root.get(ADD).content.decode()

    labels = {label.strip(" :") for label in re.findall(r"<label[^>]*>([^<]*)</label>", html)}
    assert {"Interval in seconds", "Time zone", "Random delay in seconds", "After a downtime"} <= labels
    assert not [label for label in labels if label[:1].islower()]
    assert re.search(r'<textarea name="budget"[^>]*>\s*</textarea>', html)
    offered = [(root, ADD, "hushed"), (operator(*ALL), ADD, "assistant"), (root, page_of(gone), "gone")]
    for client, place, key in offered:
        assert f'<option value="react/{key}"' in client.get(place).content.decode()
    assert 'value="react/hushed"' not in offered[1][0].get(ADD).content.decode()


def test_a_priority_above_normal_takes_its_permission(operator, root):
    client = operator(*ALL)

    (fault,) = client.post(ADD, form(priority="high")).context["adminform"].form.errors["priority"]
    assert "ravi.choose_priority" in fault and not Schedule.objects.exists()

    assert operator(*ALL, "choose_priority").post(ADD, form(priority="high")).status_code == 302
    row = made(user=user_of(client), priority="high")  # as others have set it
    assert client.post(page_of(row), form(priority="high", input="Else?")).status_code == 302


def test_a_superuser_chooses_whose_it_is_and_sees_it_by_name(root):
    get_user_model().objects.create_user("stranger")
    assert f'value="{user_of(root).username}"' in root.get(ADD).content.decode()

    for name, owner in (("stranger", "stranger"), ("", None)):
        assert root.post(ADD, form(owner=name, tenant="acme", name=f"{name}s own")).status_code == 302

        row = Schedule.objects.get(name=f"{name}s own")
        assert (getattr(row.owner, "username", None), row.tenant) == (owner, "acme")
        assert root.get(page_of(row)).context["adminform"].form["owner"].value() == owner


def test_what_is_wrong_stands_at_its_field(root):
    made("taken", user=user_of(root))

    for given, field in (
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": ""}, "cron"),
        ({"every_s": "60"}, "cron"),
        ({"cron": "", "every_s": "0"}, "every_s"),
        ({"cron": "", "every_s": "60", "jitter_s": "60"}, "jitter_s"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"agent": "react/gone"}, "agent"),
        ({"input": "x" * 300_000}, "input"),
        ({"budget": '{"max_turns": -1}'}, "budget"),
        ({"metadata": "[1]"}, "metadata"),
        ({"session": "0" * 32}, "session"),
        ({"starts_at_0": "soon", "starts_at_1": ""}, "starts_at"),
        ({"cron": "", "every_s": "60", "starts_at_0": "9999-12-31", "starts_at_1": "23:59:59"}, "starts_at"),
        ({"name": "taken"}, "name"),
    ):
        with case(given, field):
            response = root.post(ADD, form(owner=user_of(root).username, **given))
            assert list(response.context["adminform"].form.errors) == [field]
            assert Schedule.objects.count() == 1


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("day", ["9999-12-31", "0001-01-01"])
def test_no_day_is_too_far_for_the_preview(root, settings, zone, day):
    settings.TIME_ZONE = zone

    for more in ({}, {"_preview": "Preview"}):
        response = root.post(ADD, form(starts_at_0=day, starts_at_1="00:00:00", timezone=zone, **more))
        assert list(response.context["adminform"].form.errors) == ["starts_at"]
    assert not Schedule.objects.exists()


def test_a_strangers_session_is_as_one_that_is_not_there(operator):
    client = operator(*ALL)
    mine, other = (
        world.create_session(Session(owner=owner, agent="react/assistant"))
        for owner in (user_of(client), get_user_model().objects.create_user("stranger"))
    )

    refused = client.post(ADD, form(session=str(other.pk)))
    assert b"No such session. Enter the id of one of your own sessions." in refused.content
    assert client.post(ADD, form(session=str(mine.pk))).status_code == 302
    assert Schedule.objects.get().session == mine


def test_the_preview_shows_the_next_runs_and_saves_nothing(root):
    html = root.post(ADD, form(_preview="Preview")).content.decode()

    assert "2030-01-01 03:15:00" in html and "2030-01-01 09:00:00 Asia/Kathmandu" in html
    assert html.count("Asia/Kathmandu</span>") == 5
    assert "Nothing was saved." in html and not Schedule.objects.exists()
    broken = root.post(ADD, form(_preview="Preview", cron="0 0 30 2 *")).content.decode()
    assert "None." in broken and "its months do not have" in broken


# ------------------------------------------------------------------------------------------------- editing one


def test_an_edit_that_leaves_the_rule_leaves_the_next_run(root, clock):
    row = made(user=user_of(root))
    clock.advance(90)
    given = form(cron="", timezone="", every_s="60", owner=user_of(root).username, input="other words")

    assert root.post(page_of(row), given).status_code == 302

    row.refresh_from_db()
    assert (row.input, row.next_at) == ("other words", datetime(2030, 1, 1, 0, 1, tzinfo=UTC))


def test_an_edit_does_not_undo_what_the_scheduler_did_meanwhile(root, clock):
    row = made(user=user_of(root))
    stale = Schedule.objects.get()
    clock.advance(60)
    world.scheduler_tick()
    stale.input = "other words"

    world.schedules_keep(stale)

    row.refresh_from_db()
    assert (row.input, row.next_at - row.last_at) == ("other words", timedelta(minutes=1))


def test_whose_it_is_not_may_look_and_not_edit(operator):
    theirs, systems = made(user=get_user_model().objects.create_user("stranger")), made("system")
    client = operator(*ALL)

    for row in (theirs, systems):
        assert client.get(page_of(row)).status_code == 200
        assert client.post(page_of(row), form(input="mine now")).status_code == 403
        assert client.post(f"/admin/ravi/schedule/{row.pk}/delete/", {"post": "yes"}).status_code == 403

    assert set(Schedule.objects.values_list("input", flat=True)) == {"hi"}


def test_its_ticks_are_counted_before_it_is_deleted_and_not_shown(operator, root, django_assert_max_num_queries):
    client = operator(*ALL)
    row, systems = made("<b>mine", user=user_of(client)), made("system")
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    ticks = (ScheduleTick(schedule=row, at=begin + timedelta(minutes=n)) for n in range(3_000))
    ScheduleTick.objects.bulk_create(ticks)

    with django_assert_max_num_queries(12):
        html = client.get(f"/admin/ravi/schedule/{row.pk}/delete/").content.decode()

    assert "3000" in html and "&lt;b&gt;mine" in html and len(html) < 30_000
    assert client.get(f"/admin/ravi/schedule/{systems.pk}/delete/").status_code == 403
    assert root.post(f"/admin/ravi/schedule/{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert list(Schedule.objects.all()) == [systems] and not ScheduleTick.objects.exists()


# ---------------------------------------------------------------------------------------------------- actions


def test_an_operator_disables_any_and_enables_their_own(operator):
    theirs = made(user=get_user_model().objects.create_user("stranger"))
    client = operator("view_schedule", "change_schedule")
    mine = made("mine", user=user_of(client))

    act(client, "disable", theirs, mine)
    assert not Schedule.objects.filter(enabled=True).exists()
    assert "Unchanged: 1." in act(client, "enable", theirs, mine)

    assert Schedule.objects.get(enabled=True) == mine
    assert [entry.change_message for entry in LogEntry.objects.filter(object_id=str(theirs.pk))] == ["Disabled."]


def test_run_now_is_for_ones_own_and_is_logged(operator):
    theirs = made(user=get_user_model().objects.create_user("stranger"))
    client = operator("view_schedule", "change_schedule")
    mine = made("mine", user=user_of(client))

    html = act(client, "run_now", theirs, mine)

    run = Run.objects.get()
    assert (run.owner, run.metadata) == (user_of(client), {"schedule": str(mine.pk)})
    assert f"/admin/ravi/run/{run.pk}/change/" in html and "Unchanged: 1." in html
    assert LogEntry.objects.get().change_message == f"Run now: {run.pk}."
    assert not ScheduleTick.objects.exists()


def test_run_now_says_why_it_does_not(root):
    row = made(user=get_user_model().objects.create_user("gone"))
    get_user_model().objects.filter(username="gone").update(is_active=False)

    assert "gone, is not active" in act(root, "run_now", row)
    assert "one page at a time" in act(root, "run_now", row, select_across="1")
    assert not Run.objects.exists() and not LogEntry.objects.exists()


# --------------------------------------------------------------------------------------------------- looking


def test_the_list_tells_next_and_last_runs(root, clock, django_assert_max_num_queries):
    rows = [made(f"n{number}", user=user_of(root)) for number in range(20)]
    made("zoned", every=None, cron="0 9 * * *", timezone="Asia/Kathmandu")
    clock.advance(60)
    world.scheduler_tick()
    Run.objects.all().update(status="completed")

    with django_assert_max_num_queries(14):
        html = root.get(LIST).content.decode()

    assert html.count("ravi-status-completed") == 20
    assert "2030-01-01 00:02:00" in html and "2030-01-01 00:01:00" in html
    assert "2030-01-01 09:00:00 Asia/Kathmandu" in html
    run = ScheduleTick.objects.get(schedule=rows[0]).run
    page = root.get(page_of(rows[0])).content.decode()
    assert f"/admin/ravi/run/{run.pk}/change/" in page and "Next runs" in page


def test_the_last_run_is_of_the_last_tick_that_ran(root, clock):
    made(user=user_of(root))
    clock.advance(60)
    world.scheduler_tick()
    Run.objects.update(status="completed")
    Schedule.objects.update(agent="react/gone")
    clock.advance(60)
    world.scheduler_tick()

    html = root.get(LIST).content.decode()

    cell = html[html.index('class="field-last_run"') :].partition("</td>")[0]
    ran, _, not_run = cell.partition("no run: ")
    assert "2030-01-01 00:01:00" in ran and "ravi-status-completed" in ran and str(Run.objects.get().pk) in ran
    assert "2030-01-01 00:02:00" in not_run and "ravi-status-failed" in not_run


def test_hostile_texts_are_shown_as_text(root):
    row = made("<script>alert(1)</script>\u202eevil", user=user_of(root))
    Schedule.objects.update(error="<b>bad\u202e</b>", timezone="<i>x</i>", every_s=None, cron="<u>1")

    for place in (LIST, page_of(row)):
        html = root.get(place).content.decode()
        assert "<script>alert" not in html and "<b>bad" not in html and "<i>x" not in html and "<u>1" not in html
        assert "bad\u202e" not in html, place
