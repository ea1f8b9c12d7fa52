"""What the pages feeds, follows, news and loop show is run here."""

from __future__ import annotations

import json
import re
import shlex
from types import SimpleNamespace
from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django import ToolUseBlock, emit, register, submit
from ravi_django.models import Agent, Follow, JournalEntry, Publication, Run, Status
from ravi_django.testing import FakeClock, journal_of, run_until_idle, scripted
from tests.acceptance.api.api_support import permit
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import drive, make_run
from tests.support.world import followers

pytestmark = pytest.mark.django_db(transaction=True)

PAGE, FOLLOWS, NEWS = Page("feeds"), Page("follows"), Page("news")


@pytest.fixture(autouse=True)
def hinted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    world.patch(monkeypatch, "fan_out_hint", found.append)
    return found


@pytest.fixture
def ann(django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("demo", password="demo")


def test_the_pages_agents_follow_and_emit(ann: Any, hinted: list[Any]) -> None:
    PAGE.run("shop/agents/newsroom.py")

    reader = drive(make_run("desk/reader", owner=ann))
    drive(make_run("desk/reader", owner=ann))
    newsroom = drive(make_run("desk/newsroom", text="Goal!", owner=ann))

    assert (reader.status, newsroom.status) == ("completed", "completed")
    follow = Follow.objects.get()
    assert (follow.agent, follow.topic, follow.home) == ("desk/reader", "news/sport", Run.objects.all()[1].session)
    row = Publication.objects.get()
    assert row.body["payload"] == {"kind": "data", "data": {"title": "Goal!", "by": "the newsroom"}}
    assert (row.followers, hinted) == (1, [row.id])
    assert JournalEntry.objects.filter(run=reader, kind="log", name="read").exists()


def test_the_sites_own_code_follows_and_publishes(ann: Any, hinted: list[Any]) -> None:
    PAGE.run("shop/agents/newsroom.py")
    site = PAGE.run("shop/signals.py")

    row = site["subscribe"](ann)
    first, again = (site["publish"]({"id": 7, "title": "Goal!"}) for _ in range(2))

    assert (row.every_s, first.id, first.followers, hinted) == (3600, again.id, 1, [first.id])
    assert [one.id for one in followers("news/sport", "acme")] == [row.id]
    assert (site["unsubscribe"](ann), site["unsubscribe"](ann)) == (True, False)


def test_the_pages_calls_are_answered(ann: Any) -> None:
    PAGE.run("shop/agents/newsroom.py")
    client = APIClient()
    assert client.login(username="demo", password="demo")
    permit(ann, "emit_topic")
    answers = []
    for line in FOLLOWS.code("follow.sh", "console").splitlines():
        words = shlex.split(line)
        address = next(word for word in words if word.startswith("$SITE")).removeprefix("$SITE")
        if "-d" in words:
            answers.append(client.post(address, json.loads(words[words.index("-d") + 1]), format="json"))
        else:
            answers.append(client.delete(address) if "DELETE" in words else client.get(address))

    assert [answer.status_code for answer in answers] == [201, 202, 200, 204]
    assert answers[1].json() == {"message": "goal-1", "followers": 1}
    assert len(answers[2].json()["results"]) == 1


def test_a_desk_reads_single_messages_and_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "fan_out_hint", "fan_out_wake")
    register(FOLLOWS.run("shop/desk.py")["Desk"]())
    with FakeClock() as clock:
        run = drive(submit("desk/desk", "Begin."))

        for title in ("one", "two", "three"):
            world.fan_out_run(emit("news/sport", {"title": title}).id)
        drive(run)
        clock.advance(3601)
        world.fan_out_sweep()
        drive(run)

    rows = JournalEntry.objects.filter(run=run, name="news").order_by("seq")
    assert [row.result for row in rows][1:] == [["one"], ["two", "three"]]
    assert run.status == "suspended"


def test_the_pages_newsroom_and_reader_work_together(hinted, django_user_model, monkeypatch) -> None:
    world.silence(monkeypatch, "dispatch_send")
    monkeypatch.delenv("RAVI_MODEL", raising=False)
    page = NEWS.run("shop/news.py")
    reading = page["begin_reading"](django_user_model.objects.create_user("ann"))
    run_until_idle()
    news = page["submit"](page["newsroom"], "Begin.")
    page["add_story"](news, SimpleNamespace(pk=1, title="Python", url="https://news.example/1", text="It is."))
    page["add_story"](news, SimpleNamespace(pk=1, title="Python", url="https://news.example/1", text="It is."))
    run_until_idle()
    for publication in hinted:
        world.fan_out_run(publication)
    run_until_idle()

    found = [entry.result for entry in journal_of(reading) if entry.name == "feed.curated"]
    assert [(item["title"], item["keep"]) for item in found] == [("", False), ("Python", True)]
    keys = re.search(r"logs it as\s+`feed.curated`:\s+`\{(.*?)\}`", Page("news-rules").text, re.DOTALL)
    assert keys is not None and set(re.findall(r'"(\w+)"', keys[1])) == found[0].keys()
    assert Run.objects.filter(status=Status.SUSPENDED).count() == 2


def test_the_pages_loop_of_ones_own_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAVI_MODEL", raising=False)
    Page("loop").run("shop/loop.py")
    call = ToolUseBlock(tool_name="calculator", arguments={"expression": "6 * 7"}, call_id="c1")

    def script(messages: Any, options: Any) -> Any:
        return {1: call, 3: "a" * 2001}.get(len(messages), "Bye.") if options.tools else "Short."

    with scripted("shop/clerk", [script] * 4) as model:
        first = drive(make_run("shop/clerk", text="one"))
        second = drive(make_run("shop/clerk", text="and?", session=first.session))

    assert (first.output, second.output) == ("Short.", "Bye.")
    assert [tool.name for tool in model.calls[0].options.tools] == ["calculator"]
    assert model.calls[1].messages[-1].content[0].content[0].text == "42"
    roles = [message.role.value for message in model.calls[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]

    with scripted("shop/clerk", [call] * 10):
        last = drive(make_run("shop/clerk", text="and?"))
    assert (last.status, last.error["message"]) == (Status.FAILED, "no answer after 10 model calls")


def test_the_pages_rows_are_made() -> None:
    NEWS.run("shop/newsrows.py")["make_rows"]()

    assert {row.address: row.spec["kind"] for row in Agent.objects.filter(source="admin")} == {
        "news/art": "information",
        "reader/art": "personal_feed",
    }
