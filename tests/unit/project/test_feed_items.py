"""The items that the demo's feed page asks for: which of them come, and what is said of each."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from ravi_django.models import JournalEntry
from ravi_django.models.ids import first_id_of
from tests.support.curated import curated

pytestmark = pytest.mark.django_db


@pytest.fixture
def user() -> Any:
    return get_user_model().objects.create_user("reader")  # no password: hashing one is slow


@pytest.fixture
def items(user: Any, client: Client) -> Any:
    """`items("?after=…")`: the answer to the user."""
    client.force_login(user)
    return lambda query="": client.get(f"/feed/items/{query}").json()


def titles(answer: dict[str, Any]) -> list[str]:
    return [item["title"] for item in answer["items"]]


def test_the_items_after_one_are_there_though_committed_late(user: Any, items: Any) -> None:
    last, late, old = (curated(user, [title])[0] for title in ("newest", "late", "old"))
    JournalEntry.objects.filter(id=late.id).update(id=first_id_of(timezone.now() - timedelta(seconds=30)))
    JournalEntry.objects.filter(id=old.id).update(id=first_id_of(timezone.now() - timedelta(hours=1)))

    assert titles(items(f"?after={last.id}")) == ["late", "newest"]
    assert titles(items()) == ["newest", "late", "old"]
    assert titles(items(f"?before={last.id}")) == ["late", "old"]


def test_items_come_in_pages(user: Any, items: Any) -> None:
    rows = curated(user, map(str, range(53)))

    first = items()
    second = items(f"?before={first['items'][-1]['id']}")

    assert [len(page["items"]) for page in (first, second)] == [50, 3]
    assert [page["more"] for page in (first, second)] == [True, False]
    assert first["after"] == str(rows[-1].id)


def test_however_many_come_at_once_the_pages_after_an_item_go_on_to_the_last(user: Any, items: Any) -> None:
    first, *_, last = curated(user, map(str, range(121)))
    after, found, pages = str(first.id), set(), []

    for _ in range(3):
        page = items(f"?after={after}")
        after = page["after"]
        found.update(titles(page))
        pages.append((len(found), page["more"]))

    assert pages == [(51, True), (101, True), (121, False)]
    assert after == str(last.id)


def test_what_is_looked_at_again_is_the_newest_and_no_more_than_a_page(user: Any, items: Any) -> None:
    *_, last, _ = curated(user, map(str, range(121)))

    found = items(f"?after={last.id}")

    assert titles(found) == [*map(str, range(70, 120)), "120"]
    assert found["more"] is False


@pytest.mark.parametrize("address", ["https://example.org/a?b=c#d", "HTTP://127.0.0.1:8000/a"])
def test_an_item_has_its_address(user: Any, items: Any, address: str) -> None:
    curated(user, ["a"], url=address)

    assert items()["items"][0]["url"] == address


@pytest.mark.parametrize(
    "address",
    [
        "javascript://example.org/\nalert(1)",
        "java\nscript:alert(1)",
        "data:text/html,a",
        "//a.org",
        "https:a",
        "https://[",
        7,
    ],
)
def test_an_address_of_no_web_page_is_left_out(user: Any, items: Any, address: Any) -> None:
    curated(user, ["a"], url=address)

    assert items()["items"][0]["url"] == ""


def test_what_an_agent_logged_otherwise_is_shown_as_it_can_be(user: Any, items: Any) -> None:
    row = curated(user, [""])[0]
    JournalEntry.objects.filter(id=row.id).update(result={"keep": "yes", "score": "high", "headline": "H", "reason": 3})

    item = items()["items"][0]

    assert (item["title"], item["kept"], item["score"], item["reason"]) == ("H", False, None, "3")
    assert item["url"] == ""
