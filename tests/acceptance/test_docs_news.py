"""What docs/agents.md shows of news is run here."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from ravi_django.models import Agent, Run, Status
from ravi_django.testing import journal_of, run_until_idle
from tests.support import world
from tests.support.docs import Page

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Page("agents")


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    world.patch(monkeypatch, "fan_out_hint", found.append)
    world.silence(monkeypatch, "dispatch_send")
    monkeypatch.delenv("RAVI_MODEL", raising=False)
    return found


def test_the_pages_newsroom_and_reader_work_together(published: list[Any], django_user_model: Any) -> None:
    page = PAGE.run("shop/news.py")
    reading = page["begin_reading"](django_user_model.objects.create_superuser("ann"))
    run_until_idle()
    news = page["submit"](page["newsroom"], "Begin.")
    page["add_story"](news, SimpleNamespace(pk=1, title="Python", url="https://news.example/1", text="It is."))
    page["add_story"](news, SimpleNamespace(pk=1, title="Python", url="https://news.example/1", text="It is."))
    run_until_idle()
    for publication in published:
        world.fan_out_run(publication)
    run_until_idle()

    found = [entry.result for entry in journal_of(reading) if entry.name == "feed.curated"]
    assert [(item["title"], item["keep"]) for item in found] == [("", False), ("Python", True)]
    keys = re.search(r"logs it as\s+`feed.curated`:\s+`\{(.*?)\}`", PAGE.text, re.DOTALL)
    assert keys is not None and set(re.findall(r'"(\w+)"', keys[1])) == found[0].keys()
    assert Run.objects.filter(status=Status.SUSPENDED).count() == 2


def test_the_pages_rows_are_made() -> None:
    PAGE.run("shop/newsrows.py")["make_rows"]()

    assert {row.address: row.spec["kind"] for row in Agent.objects.filter(source="admin")} == {
        "news/art": "information",
        "reader/art": "personal_feed",
    }
