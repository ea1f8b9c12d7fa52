"""The page of a run: who reads what of it, and which actions it offers. test_run_browser.py has it in a browser."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient, Client
from django.utils import translation

from ravi_django.access import AccessPolicy
from ravi_django.models import Blob, InboxMessage, JournalEntry, Run, Status
from tests.acceptance.api.api_support import AGENT, permit
from tests.support import world
from tests.support.asked import Kind, asked_by
from tests.support.inbox import logged_in
from tests.support.journals import long, rows_of
from tests.support.runs import make_run
from tests.support.world import submit

pytestmark = pytest.mark.django_db
SECRET = {"hidden": True, "arguments": {"iban": "DE75-sesame"}}
CALL = {"kind": "tool.call", "name": "pay", "path": "1"}


def page_of(run: Run, address: str = "") -> str:
    return f"/ravi/ui/runs/{run.id}/{address}"


def read(user: Any, run: Run, address: str = "") -> str:
    response = logged_in(user).get(page_of(run, address))
    assert response.status_code == 200
    return b"".join(response).decode()


def lanes_of(page: str) -> list[str]:
    rows = re.findall(r'<div id="e-.*?role="rowheader">(.*?)</span><span role="cell">', page, re.S)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in rows]


def set_to(run: Run, status: str, **columns: Any) -> Run:
    Run.objects.filter(id=run.id).update(status=status, **columns)
    run.refresh_from_db()
    return run


def team(user: Any) -> Run:
    """A run that starts a child, waits a day for a person, and goes on elsewhere after its worker was lost."""
    run = make_run(AGENT, owner=user)
    child = make_run("react/child", owner=user, parent=run, root=run, depth=1, session=run.session)
    rows_of(child, (1, 2, {"kind": "llm.call", "name": "gpt"}))
    day = timedelta(days=1).total_seconds()
    rows_of(
        run,
        (0, 0, {"kind": "run.started", "result": {"worker": "w1"}}),
        (0, 1, {"kind": "child.spawned", "name": "react/child", "result": {"run": str(child.id)}}),
        (2, 2, {"kind": "approval", "name": "pay", "path": "ask", "phase": "started"}),
        (2, 2, {"kind": "run.suspended", "result": {"waiting_on": []}}),
        (day, day, {"kind": "run.resumed", "epoch": 2, "result": {"worker": "w2", "after": "2026-01-01T00:00:00Z"}}),
        (day, day, {"kind": "approval", "name": "pay", "path": "ask", "epoch": 2}),
        (day, day + 1, {**CALL, "epoch": 2, "error": {"type": "Timeout", "message": "<b>no answer</b>"}}),
        (day + 2, day + 3, {**CALL, "epoch": 2, "attempt": 2, "result": {"content": []}}),
    )
    for one in (run, child):
        set_to(one, Status.COMPLETED, finished_at=run.created_at + timedelta(seconds=day + 3))
    return run


def test_a_run_opens_for_those_who_may_read_it_over_rest(user: Any, stranger: Any, root: Any, settings: Any) -> None:
    run = submit(AGENT, "hi", user=user)
    rows_of(run, (0, 1, CALL))

    gone = Client().get(page_of(run))
    assert (gone.status_code, gone["Location"]) == (302, f"/accounts/login/?next={page_of(run)}")
    for address in ("", "export/"):
        response = logged_in(stranger).get(page_of(run, address))
        assert (response.status_code, response["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert lanes_of(read(user, run)) == lanes_of(read(root, run)) == [f"{AGENT} pending", "pay"]
    assert [row["name"] for row in json.loads(read(user, run, "export/"))["journal"]] == ["pay"]
    assert 'href="export/"' in read(user, run)

    settings.RAVI = {**settings.RAVI, "JOURNAL_FOR_OWNERS": False}
    page = read(user, run, f"?q=pay&entry={run.id}.1")
    assert lanes_of(page) == [f"{AGENT} pending"] and 'href="export/"' not in page
    assert logged_in(user).get(page_of(run, "export/")).status_code == 403
    assert lanes_of(read(root, run)) == [f"{AGENT} pending", "pay"]


@pytest.mark.django_db(transaction=True)
async def test_under_asgi_an_export_is_not_collected_in_memory(user: Any) -> None:
    run = await sync_to_async(submit)(AGENT, "hi", user=user)
    await sync_to_async(rows_of)(run, (0, 1, CALL), (1, 2, {**CALL, "path": "2"}))
    client = AsyncClient()
    await client.aforce_login(user)

    parts = [part async for part in await client.get(page_of(run, "export/"))]

    assert len(parts) == 6 and [row["path"] for row in json.loads(b"".join(parts))["journal"]] == ["1", "2"]


def test_an_export_has_a_child_whose_id_was_made_by_a_slow_clock(user: Any) -> None:
    run = make_run(AGENT, owner=user)
    child = make_run("react/child", owner=user, parent=run, root=run, depth=1, session=run.session)
    early = {"parent": child, "root": run, "depth": 2, "session": run.session, "owner": user}
    Run.objects.create(id=UUID(int=1), agent="react/grandchild", **early)
    other = make_run("react/sibling", owner=user, parent=run, root=run, depth=1, session=run.session)

    for top, below in ((run, [UUID(int=1), child.id, other.id]), (child, [UUID(int=1)])):
        found = json.loads(read(user, top, "export/"))["descendants"]
        assert [one["run"]["id"] for one in found] == [str(one) for one in below]


def test_of_a_long_tree_short_runs_are_whole_and_a_search_finds_all(user: Any, monkeypatch: Any) -> None:
    world.patch(monkeypatch, "UI_ROWS", 12)
    run = make_run(AGENT, owner=user)
    child = make_run("react/child", owner=user, parent=run, root=run, depth=1, session=run.session)
    for one, count in ((run, 30), (child, 2)):
        rows_of(one, *((at, at + 1, {**CALL, "path": f"{at}"}) for at in range(count)))
        Run.objects.filter(id=one.id).update(next_seq=count + 1)

    page = read(user, run)

    lanes = [page.count(f'id="e-{one.id}.') for one in (run, child)]
    assert (lanes, "more entries" in page) == ([1 + 10, 1 + 2], True)
    assert f'id="e-{run.id}.30"' in read(user, run, "?q=29")


class Policy(AccessPolicy):
    def may_read_journal(self, user: Any, run: Run) -> bool:
        return run.agent != "react/child"


def test_a_site_s_policy_holds_for_each_run_of_a_tree(user: Any, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": f"{__name__}.Policy"}
    run = team(user)
    child = Run.objects.get(parent=run)

    for name, readable, refused in ((run, "worker", "gpt"), (child, "", "gpt")):
        page = read(user, name, f"?entry={child.id}.1")
        assert readable in page and refused not in page, name
        assert "No entry matches." in read(user, name, "?q=gpt")
    assert json.loads(read(user, run, "export/"))["descendants"] == []
    assert logged_in(user).get(page_of(child, "export/")).status_code == 403


def test_the_timeline_has_the_whole_tree_and_leaves_out_the_time_in_which_nothing_ran(user: Any) -> None:
    run = team(user)

    page = read(user, run)

    steps = [f"{AGENT} completed", "react/child completed", "model · gpt", "pay · approval", "worker lost, taken over"]
    assert lanes_of(page) == [*steps, "pay · 2 attempts"]
    assert "bar-bad" in page and "bar-wait" in page and page.count("+23 h 59 min") == 1
    assert "+23 h 59 min" not in read(user, run, "?time=true")
    assert lanes_of(read(user, run, "?kind=failed")) == [f"{AGENT} completed", "worker lost, taken over"]
    entry = read(user, run, f"?part=detail&entry={run.id}.8")
    assert "&lt;b&gt;no answer&lt;/b&gt;" in entry and "attempt 2" in entry
    assert "Choose a row" in read(user, run, f"?part=detail&entry={make_run().id}.1")
    (child,) = json.loads(read(user, run, "export/"))["descendants"]
    assert (child["run"]["agent"], [row["name"] for row in child["journal"]]) == ("react/child", ["gpt"])


def test_a_live_run_that_has_not_changed_is_not_sent_again(user: Any, monkeypatch: Any) -> None:
    run = make_run(AGENT, owner=user, status=Status.SUSPENDED)
    now = run.created_at + timedelta(hours=1)
    monkeypatch.setattr("ravi_django.ui.runs.clock.present", lambda: now)
    client = logged_in(user)

    def again(address: str = "") -> int:
        return client.get(page_of(run, address), headers={"if-none-match": tag}).status_code

    tag = client.get(page_of(run))["ETag"]
    assert (again(), again("?kind=all"), again(f"?entry={run.id}.1")) == (304, 200, 200)
    asked_by(run, Kind.QUESTION, "owner")
    assert again() == 200
    tag = client.get(page_of(run))["ETag"]
    rows_of(run, (0, 1, CALL))
    Run.objects.filter(id=run.id).update(next_seq=2)
    assert again() == 200
    tag = client.get(page_of(run))["ETag"]
    now += timedelta(minutes=2)
    assert again() == 200  # bars have grown
    set_to(run, Status.COMPLETED, finished_at=now)
    tag = client.get(page_of(run))["ETag"]
    now += timedelta(days=1)
    assert again() == 304


def test_a_takeover_is_marked_where_the_next_worker_began(user: Any) -> None:
    run = make_run(AGENT, owner=user)
    rows_of(
        run,
        (0, 0, {"kind": "run.started", "result": {"worker": "w1"}}),
        (0, 1, CALL),
        (9, 9, {"kind": "run.resumed", "epoch": 2, "result": {"worker": "w2", "after": "2026-01-01T00:00:00Z"}}),
        (1.5, 9, {"kind": "llm.call", "name": "gpt", "path": "2", "epoch": 2}),  # in one commit with the row before
    )
    set_to(run, Status.COMPLETED, finished_at=run.created_at + timedelta(seconds=9))

    page = read(user, run)

    lost = {*re.findall(r'class="bar-lost" x1="([\d.]+)%"', page)}
    assert lost == {*re.findall(r'class="bar-model" x="([\d.]+)%"', page)}


def test_the_page_is_in_german_too(user: Any, root: Any, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    run = team(user)

    german = {"accept-language": "de"}
    page, whole = (logged_in(reader).get(page_of(run), headers=german).content.decode() for reader in (user, root))

    translation.activate(settings.LANGUAGE_CODE)
    lanes = ["Modell · gpt", "pay · Genehmigung", "Worker verloren, übernommen", "pay · 2 Versuche"]
    assert lanes_of(page)[2:] == lanes and ">Zeitleiste</h2>" in page
    assert "<dt>Priorität</dt>" in whole and "<dt>Priorität</dt>" not in page
    words = json.loads(page.partition('id="words" type="application/json">')[2].partition("</script>")[0])
    assert words["Fail the run"] == "Lauf scheitern lassen"


def test_a_search_finds_only_what_its_user_may_read(user: Any, root: Any) -> None:
    run = make_run(AGENT, owner=user)
    rows_of(
        run, (0, 1, {**CALL, "request": SECRET}), (1, 2, {**CALL, "path": "2", "request": {"arguments": {"id": 77}}})
    )

    assert len(lanes_of(read(user, run, "?q=77"))) == 2
    assert "No entry matches." in read(user, run, "?q=sesame")
    assert "sesame" not in read(user, run, f"?entry={run.id}.1")
    assert len(lanes_of(read(root, run, "?q=SESAME"))) == 2
    assert "sesame" in read(root, run, f"?entry={run.id}.1")


def test_a_blocked_run_shows_what_was_recorded_against_what_was_asked(user: Any) -> None:
    run = make_run(AGENT, owner=user)
    rows_of(run, (0, 1, CALL), (1, 2, {**CALL, "path": "2", "request": SECRET}))
    sides = {side: {"kind": "tool.call", "name": side, "arguments": {"iban": "sesame"}} for side in ("find", "finds")}
    for place, is_shown in (("1", True), ("2", False)):
        diff = {"path": place, "seq": int(place), "recorded": sides["find"], "asked": sides["finds"]}
        set_to(run, Status.BLOCKED, error={"type": "DeterminismError", "message": "differs", "diff": diff})
        page = html.unescape(read(user, run))
        assert '<del>-   "name": "find"' in page and '<ins>+   "name": "finds"' in page
        assert ("sesame" in page) is is_shown


def test_a_model_call_shows_what_the_call_before_was_not_sent(user: Any, root: Any) -> None:
    run = submit(AGENT, "hi", user=user)
    said = InboxMessage.objects.create(
        run=run, message_id="2", body={"payload": {"message": {"content": [{"type": "text", "text": "Be brief."}]}}}
    )
    for name, body in (
        ("a1", {"role": "system", "content": [{"type": "text", "text": "You help.\nToday is Monday."}]}),
        ("a2", {"role": "system", "content": [{"type": "text", "text": "You help.\nToday is Tuesday."}]}),
        ("b1", [{"name": "find"}, {"name": "old"}]),
        ("b2", [{"name": "find"}, {"name": "pay"}]),
    ):
        Blob.objects.create(id=name, body=json.dumps(body).encode(), size=1)
    model = {"kind": "llm.call", "name": "gpt"}
    rows_of(
        run,
        (0, 1, {**model, "path": "1", "request": {"messages": 2}, "digests": {"instructions": "a1", "tools": "b1"}}),
        (1, 2, {**CALL, "path": "2", "request": SECRET, "result": {"content": "sesame"}}),
        (2, 3, {**CALL, "path": "3", "name": "find", "result": {"content": [{"text": "Order 7 left."}]}}),
        (3, 4, {**model, "path": "4", "request": {"messages": 6}, "digests": {"instructions": "a2", "tools": "b2"}}),
    )
    JournalEntry.objects.filter(run=run, seq=4).update(read_upto=said.id)
    JournalEntry.objects.filter(run=run, seq=1).update(read_upto=said.id - 1)

    first, shown, whole = (
        read(reader, run, f"?part=detail&entry={run.id}.{seq}") for reader, seq in ((user, 1), (user, 4), (root, 4))
    )

    assert "New since" not in first
    assert all(words in shown for words in ("New since", "2 → 6", "+ pay, - old", "Order 7 left.", "Be brief."))
    assert "sesame" not in shown and "Tuesday" not in shown
    assert "4 of 5 messages, rebuilt" in shown and "Be brief." in shown.partition("Show what was sent")[2]
    assert "sesame" in whole and "<ins>+ Today is Tuesday.\n</ins>" in whole and "  You help." in whole


def test_json_folds_to_one_line_whatever_its_size(user: Any) -> None:
    run = make_run(AGENT, owner=user)
    text = "One line.\nAnother one. " * 400
    rows = [{"id": number, "note": "x" * 60} for number in range(900)]
    other = [{"id": -number, "note": f"{number}" * 20} for number in range(200)]
    request = {"arguments": rows, "ran_with": other}
    rows_of(run, (0, 1, {**CALL, "request": request, "result": {"text": text, "few": {"a": 1}, "many": rows}}))

    page = read(user, run, f"?part=detail&entry={run.id}.1")

    assert page.count("<details open>") == 2  # request and result
    assert "<details><summary>9,200 characters <i>One line. Another one." in page
    assert "<details><summary>[900] <i>[{&quot;id&quot;: 0, " in page and "<li>… +700</li>" in page
    assert page.count("<li>") < 2_000


OWN = {"cancel", "export"}


@pytest.mark.parametrize(
    ("status", "columns", "permissions", "offered"),
    [
        ("running", {}, [], OWN),
        ("running", {"waiting_on": [{"kind": "signal", "name": "go"}]}, ["signal_run"], {*OWN, "signals"}),
        ("blocked", {}, [], {*OWN, "retry"}),
        ("failed", {}, [], {"retry", "export"}),
        ("completed", {}, ["signal_run", "change_run"], {"export"}),
    ],
)
def test_a_button_is_there_for_those_who_may_use_it_now(user, status, columns, permissions, offered) -> None:
    run = set_to(submit(AGENT, "hi", user=user), status, **columns)
    permit(user, *permissions)

    page = read(user, run).partition('id="asks"')[0]

    found = {*re.findall(r'data-act="(\w+)"', page), *re.findall(r'href="(export)/"', page)}
    assert found == offered


def test_the_number_of_queries_does_not_depend_on_the_journal(user: Any, django_assert_max_num_queries: Any) -> None:
    run = submit(AGENT, "hi", user=user)
    long(run, 400)
    client = logged_in(user)
    with django_assert_max_num_queries(16):
        page = client.get(page_of(run)).content.decode()

    assert len(lanes_of(page)) == 300 and "300 of 401 rows" in page
    assert len(lanes_of(read(user, run, "?from=300"))) == 101


def test_the_axis_has_the_true_time_and_a_lost_attempt_is_a_bar(user: Any, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "LEASE_S": 30, "HEARTBEAT_S": 10}
    run = make_run(AGENT, owner=user)
    expired = (run.created_at + timedelta(seconds=50)).isoformat()
    rows_of(
        run,
        (11, 11, {"kind": "run.started", "result": {"worker": "w1"}}),
        (11, 16, CALL),
        (51, 51, {"kind": "run.resumed", "epoch": 2, "result": {"worker": "w2", "after": expired}}),
        (51, 61, {"kind": "llm.call", "name": "gpt", "path": "2", "epoch": 2}),
    )
    set_to(run, Status.COMPLETED, finished_at=run.created_at + timedelta(seconds=61))

    page = read(user, run)

    assert re.findall(r'<text x="[\d.]+%" y="13"[^>]*>([^<]*)<', page) == ["+11.0 s", "15.0 s", "+31.0 s", "55.0 s"]
    gone = page.partition('class="bar-gone"')[2]  # from the end of the call to the last renewal of the lease
    assert gone.partition("</div>")[0].count(">4.0 s<") == 1 and ">unknown<" in gone.partition("</div>")[0]


def test_of_a_child_only_a_user_who_may_run_its_agent_can_fork(user: Any, root: Any) -> None:
    run = submit(AGENT, "hi", user=user)
    child = make_run("react/nobody", owner=user, parent=run, root=run, depth=1, session=run.session)
    for one in (run, child):
        rows_of(one, (0, 1, CALL), (1, 2, {**CALL, "path": "2"}))

    pages = [read(user, run, f"?part=detail&entry={one.id}.2") for one in (run, child)]

    assert ["Fork before this" in page for page in pages] == [True, False]
