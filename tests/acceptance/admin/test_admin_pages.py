"""What an operator sees of runs, sessions, agents and workers, over HTTP as a browser does."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils import timezone

from ravi_django.kernel import ModelError, TextBlock, ToolUseBlock
from ravi_django.models import Agent, JournalEntry, Run, Session, WorkerProcess
from tests.support import world
from tests.support.cases import queries_of
from tests.support.inbox import EVIL, page, words
from tests.support.runs import code, drive, make_run
from tests.support.world import submit_once

pytestmark = pytest.mark.django_db(transaction=True)


def call(text: str, key: str = "c1") -> ToolUseBlock:
    return ToolUseBlock(tool_name="echo", arguments={"text": text}, call_id=key)


def run_page(client: Any, run: Run, tail: str = "") -> str:
    return page(client, f"/ravi/ui/runs/{run.pk}/{tail}")


def waiting(**options: Any) -> Run:
    return submit_once("react/assistant", "hi", send=lambda run_id: None, **options)[0]


# ------------------------------------------------------------------------------------------------- a run's page


def test_a_run_tells_its_story(root, driven) -> None:
    run = driven([call("one"), "It is done."], "Do it", user=get_user_model().objects.create_user("olga"))

    assert root.get(f"/admin/ravi/run/{run.pk}/change/").url == f"/ravi/ui/runs/{run.pk}/"
    text = words(run_page(root, run))

    for shown in ("olga", "completed", "Do it", "It is done.", "model · ", "echo", "2,400 → 68", "$0.0042"):
        assert shown in text, shown


def test_nothing_from_outside_is_markup(root, driven) -> None:
    run = driven(
        [[TextBlock(text=EVIL), call(EVIL)], EVIL],
        EVIL,
        user=get_user_model().objects.create_user(username=EVIL),
        metadata={EVIL: EVIL},
    )
    entries = JournalEntry.objects.filter(run=run)
    addresses = [
        "/admin/ravi/run/",
        f"/admin/ravi/run/?q={EVIL}",
        f"/ravi/ui/runs/{run.pk}/?kind=all",
        f"/ravi/ui/runs/{run.pk}/?q={EVIL}",
        "/admin/ravi/session/",
        f"/admin/ravi/session/{run.session_id}/change/",
        *(f"/ravi/ui/runs/{run.pk}/?part=detail&entry={run.pk}.{entry.seq}" for entry in entries),
    ]

    for address in addresses:
        html = page(root, address)
        assert EVIL not in html, address
        assert "&lt;script&gt;alert(" in html or "entry" in address, address


def test_a_failed_run_shows_the_providers_words(root, driven) -> None:
    run = driven([ModelError(f"no such key {EVIL}", type="AuthenticationError")])

    html = run_page(root, run)

    assert run.status == "failed"
    assert "AuthenticationError" in html
    assert "no such key &lt;script&gt;" in html
    assert EVIL not in html


def test_a_suspended_run_says_what_it_waits_for_and_shows_it_no_longer_once_it_goes_on(root) -> None:
    async def story(ctx: Any, inbox: Any) -> Any:
        return await ctx.sleep_until_signal("parcel")

    code(story)
    run = drive(make_run())

    assert "parcel" in words(run_page(root, run)).split("Waiting for")[1][:80]

    world.send_signal(run.id, "parcel", {"number": 7})
    run = drive(run)
    html = run_page(root, run)
    assert "completed" in html and "<dt>Waiting for</dt>" not in html


def test_an_entry_has_all_of_it_and_what_it_was_made_with(root, driven, monkeypatch) -> None:
    world.patch(monkeypatch, "INLINE_BYTES", 1000)
    run = driven([call("y" * 50_000), "ok"])
    entry = JournalEntry.objects.get(run=run, kind="tool.call")
    assert "$blob" in entry.result
    model_entry = JournalEntry.objects.filter(run=run, kind="llm.call").first()

    assert "y" * 50_000 in run_page(root, run, f"?part=detail&entry={run.pk}.{entry.seq}")
    shown = words(run_page(root, run, f"?part=detail&entry={run.pk}.{model_entry.seq}"))
    assert "Say it again." in shown  # the tools' schemas that the model saw
    assert model_entry.digests["tools"] in shown and "1 · 1 · 0" in shown


urlpatterns = [path("admin/", admin.site.urls)]  # as with RAVI["PAGES"] = False


def test_a_site_without_pages_shows_the_fields_of_a_run_and_its_entries(root, driven, settings) -> None:
    run = driven(["It is done."], "Do it")
    settings.ROOT_URLCONF = __name__

    text = words(page(root, f"/admin/ravi/run/{run.pk}/change/"))

    of_run = ("Output: It is done.", "Status: Completed", "Session: Do it")
    for part in (*of_run, "Kind: llm.call", "Name: scripted"):
        assert part in text, part


def test_a_runs_page_costs_the_same_however_long_it_is(root, driven) -> None:
    short, long = driven(["ok"]), driven([*(call("x", f"c{n}") for n in range(20)), "ok"], key="other")

    run_page(root, short), run_page(root, long)
    assert queries_of(lambda: run_page(root, short)) == queries_of(lambda: run_page(root, long)) < 20


# --------------------------------------------------------------------------------------------------- the list


def test_the_list_asks_a_fixed_number_of_questions_and_counts_no_further_than_it_shows(root) -> None:
    def questions() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            page(root, "/admin/ravi/run/")
        return [query["sql"] for query in queries]

    waiting(user=get_user_model().objects.create_user("one"))
    before = questions()
    for n in range(12):
        waiting(user=get_user_model().objects.create_user(f"user{n}"))
    after = questions()

    assert len(after) == len(before)
    assert [sql for sql in after if "COUNT(" in sql and "ravi_run" in sql]
    assert all("LIMIT 10000" in sql for sql in after if "COUNT(" in sql and "ravi_run" in sql)


def test_search_and_filters_find_runs(root, driven) -> None:
    olga = get_user_model().objects.create_user("olga")
    mine, other = driven(["ok"], user=olga), waiting()

    def found(query: str) -> set[str]:
        html = page(root, f"/admin/ravi/run/?{query}")
        return {run for run in (str(mine.id), str(other.id)) if f"/admin/ravi/run/{run}/change/" in html}

    assert found("") == {str(mine.id), str(other.id)}
    assert found(f"q={mine.id}") == {str(mine.id)}
    assert found(f"q={str(mine.id)[:23]}") == {str(mine.id)}
    assert found(f"q={mine.session_id.hex}") == {str(mine.id)}
    assert found("q=olg") == {str(mine.id)}
    assert found("q=nobody") == set()
    assert found("status__exact=pending") == {str(other.id)}
    assert found("agent=react%2Fassistant") == {str(other.id)}


# ------------------------------------------------------------------------------------------------ the others


def test_a_session_shows_its_turns_and_runs(root, driven) -> None:
    first = driven(["the first answer"], "the first question")
    driven(["the second answer"], "the second question", session=first.session_id)

    text = words(page(root, f"/admin/ravi/session/{first.session_id}/change/"))

    assert re.search("the first question.*the first answer.*the second question.*the second answer", text)
    assert text.count("completed") == 2
    assert "the first question" in page(root, "/admin/ravi/session/?q=first+question")


def test_an_empty_session_has_a_page(root) -> None:
    session = Session.objects.create()

    assert "No messages yet" in page(root, f"/admin/ravi/session/{session.pk}/change/")


def test_migrating_makes_the_catalogue(root) -> None:
    Agent.objects.all().delete()
    call_command("migrate", verbosity=0)

    html = page(root, "/admin/ravi/agent/")
    agent = Agent.objects.get(address="react/assistant")

    assert "react/assistant" in html
    assert "calculator, current_time, send_invoice, send_mail" in html
    assert '<td class="field-model_name">rehearsal</td>' in html
    assert "at_most_once" in page(root, f"/admin/ravi/agent/{agent.pk}/change/")


def test_workers_are_listed_with_how_they_do(root) -> None:
    now = timezone.now()
    for name, seen in (("alive:1", now), ("dead:2", now - timedelta(minutes=5))):
        WorkerProcess.objects.create(name=name, started_at=now - timedelta(hours=1), seen_at=seen, runs=3)

    text = words(page(root, "/admin/ravi/workerprocess/"))

    assert re.search(r"alive:1 .*?alive .*dead:2 .*?late", text)
    assert root.get("/admin/ravi/workerprocess/alive_3A1/change/").status_code == 302
