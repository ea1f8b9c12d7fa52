"""The demo's feed page: whose items are shown, which of them, and what its users begin with."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from project import feeds
from project.feed_page import Place
from project.models import FeedPreferences
from ravi_django import emit, follow, submit
from ravi_django.models import Follow, JournalEntry, Run, Signal, Source
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.cases import case
from tests.support.curated import curated
from tests.support.inbox import logged_in

pytestmark = pytest.mark.django_db

PREFERENCES = "/feed/preferences/"


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("FEED_SERVER_URL", "http://127.0.0.1:1")
    call_command("seed_demo", verbosity=0)
    return {user.username: user for user in get_user_model().objects.all()}


def titles(client: Client) -> list[str]:
    return [item["title"] for item in client.get("/feed/items/").json()["items"]]


def test_everybody_sees_the_items_of_their_own_reader_alone(users: dict[str, Any]) -> None:
    for name, user in users.items():
        curated(user, [f"for {name}"])
    curated(users["demo"], ["of another agent"], agent="react/assistant")
    curated(None, ["of the system"])
    assert {name: titles(logged_in(user)) for name, user in users.items()} == {
        name: [f"for {name}"] for name in ("demo", "ada", "staff", "admin")
    }


def test_what_is_refused_and_not_cached(users: dict[str, Any]) -> None:
    for query in ["after=x", "before=1", f"after={'f' * 40}"]:
        assert logged_in(users["demo"]).get(f"/feed/items/?{query}").status_code == 400, query
    client = logged_in(users["demo"])
    assert [client.get(f"/feed/items/?after={digit * 32}").status_code for digit in "0f"] == [400, 400]
    # sessions and follows are ones own for a superuser too
    found = logged_in(users["admin"]).get("/feed/items/").json()
    assert (found["session"], found["follows"]) == (None, [])
    # preferences that are none are refused
    for body in ["", "[]", '{"text": 1}', '{"text": "\\u0000"}', json.dumps({"text": "x" * 2001})]:
        with case(body):
            before = list(Follow.objects.order_by("id").values_list("metadata", flat=True))
            answer = logged_in(users["demo"]).post(PREFERENCES, body, content_type="application/json")
            assert (answer.status_code, answer.json()["error"]["field"]) == (400, "text")
            assert list(Follow.objects.order_by("id").values_list("metadata", flat=True)) == before
            assert not Signal.objects.exists()
    # no page of the demo is kept in caches
    for path in ["/ravi/ui/chat/", "/feed/", "/feed/items/"]:
        with case(path):
            client = Client()
            client.force_login(users["ada"])
            assert "no-store" in client.get(path).headers["Cache-Control"]


def test_strangers_are_asked_to_log_in(client: Client) -> None:
    for path, status in [("/feed/", 302), ("/feed/items/", 401), ("/feed/items/?after=x", 401), (PREFERENCES, 401)]:
        assert client.get(path).status_code == status, path


def test_preferences_are_told_to_the_reader_at_work_and_kept_for_the_next(users: dict[str, Any]) -> None:
    logged_in(users["demo"]).post(PREFERENCES, {"text": " stamps "}, content_type="application/json")
    signal = Signal.objects.get()
    assert (signal.run.owner, signal.payload) == (users["demo"], {"preferences": "stamps"})
    assert feeds.preferences_of(users["demo"]) == "stamps"
    assert {row.metadata["preferences"] for row in feeds.follows_of(users["demo"])} == {"stamps"}
    assert "stamps" not in {row.metadata["preferences"] for row in feeds.follows_of(users["ada"])}
    # other metadata of a follow stays when preferences change
    given = {"agent": feeds.READER, "topic": "news/science", "metadata": {"colour": "blue"}}
    client = logged_in(users["demo"])
    client.post("/ravi/follows/", given, content_type="application/json")
    client.post(PREFERENCES, {"text": "stamps"}, content_type="application/json")
    found = Follow.objects.get(owner=users["demo"], topic="news/science").metadata
    assert found == {"colour": "blue", "preferences": "stamps"}
    # a follow by the contracts own call is the readers and leaves the preferences
    client = logged_in(users["demo"])
    before = feeds.preferences_of(users["demo"])
    client.post("/ravi/follows/", {"agent": feeds.READER, "topic": "news/business"}, content_type="application/json")
    assert before and f">{before}</textarea>" in client.get("/feed/").content.decode()
    listed = client.get("/feed/items/").json()["follows"]
    assert [row["topic"] for row in listed] == ["news/business", "news/music", "news/science", "news/sport"]
    row = Follow.objects.get(owner=users["demo"], topic="news/business")
    assert (row.home_id, row.metadata) == (feeds.session_of(users["demo"]), {"preferences": before})


def test_the_page_begins_a_reader_and_finds_it_again(users: dict[str, Any]) -> None:
    client = logged_in(users["admin"])
    assert "personal_feed/reader" in client.get("/feed/").content.decode()
    client.get("/feed/")
    run = Run.objects.get(owner=users["admin"])
    assert client.get("/feed/items/").json()["session"] == str(run.session_id)
    # who follows nothing keeps what they saved
    client = logged_in(users["admin"])
    client.post(PREFERENCES, {"text": "stamps"}, content_type="application/json")
    assert ">stamps</textarea>" in client.get("/feed/").content.decode()


def test_follows_of_one_topic_are_one_entry_with_all_of_them(users: dict[str, Any]) -> None:
    # what the users begin with is of no session and comes to their reader
    rows = Follow.objects.filter(owner=users["demo"])
    assert set(rows.values_list("session", "home")) == {(None, Run.objects.get(owner=users["demo"]).session_id)}
    # follows of one topic are one entry with all of them
    own = Follow.objects.get(owner=users["demo"], topic="news/science")
    bound, _ = follow(feeds.READER, "news/science", user=users["demo"], session=own.home_id, every_s=60)
    assert bound.id != own.id
    listed = logged_in(users["demo"]).get("/feed/items/").json()["follows"]
    science = [row for row in listed if row["topic"] == "news/science"]
    assert science == [{"topic": "news/science", "every_s": 0, "ids": [str(own.id), str(bound.id)]}]


def arrive_in_between(monkeypatch: pytest.MonkeyPatch, user: Any, *first: Any) -> None:
    """Somebody else of `user` asks for the reader after the next one has looked for it, and before it begins one."""

    def late(*args: Any, **options: Any) -> Run:
        monkeypatch.setattr(feeds, "submit", submit)
        for preferences in first:
            FeedPreferences.objects.create(user=user, text=preferences)
        feeds.reader_of(user)
        return submit(*args, **options)

    monkeypatch.setattr(feeds, "submit", late)


@pytest.mark.parametrize("first", [[], ["stamps"]], ids=["the same preferences", "other preferences"])
def test_first_visits_at_the_same_time_begin_one_reader(
    users: dict[str, Any], monkeypatch: pytest.MonkeyPatch, first: list[str]
) -> None:
    arrive_in_between(monkeypatch, users["admin"], *first)
    assert feeds.reader_of(users["admin"]) == Run.objects.get(owner=users["admin"])


def test_after_the_reader_has_ended_there_is_one_again(users: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [feeds.reader_of(users["admin"])]
    for _ in range(2):
        Run.objects.filter(owner=users["admin"]).update(status="failed")
        arrive_in_between(monkeypatch, users["admin"])
        ended.append(feeds.reader_of(users["admin"]))
    assert len({run.id for run in ended}) == Run.objects.filter(owner=users["admin"]).count() == 3
    assert {run.session_id for run in ended} == {ended[0].session_id}


def test_a_reader_that_lives_is_found_behind_one_that_has_ended(users: dict[str, Any]) -> None:
    live = Run.objects.get(owner=users["demo"])
    curated(users["demo"], ["of a later run that has ended"])
    page = logged_in(users["demo"])
    page.get("/feed/")
    assert Run.objects.filter(owner=users["demo"], status="pending").get() == live
    assert page.get("/feed/items/").json()["session"] == str(live.session_id)


def test_seeding_again_moves_the_sources_and_changes_nothing_of_the_users(
    users: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Follow.objects.filter(owner=users["demo"], topic="news/sport").delete()
    Source.objects.update(etag="old", failures=3)
    before = list(Follow.objects.values().order_by("id"))
    monkeypatch.setenv("FEED_SERVER_URL", "http://127.0.0.1:2")
    call_command("seed_demo", verbosity=0)
    assert (list(Follow.objects.values().order_by("id")), Run.objects.count()) == (before, 2)
    places = sorted(Source.objects.values_list("location", "etag", "failures", "enabled"))
    assert places == sorted(
        (f"http://127.0.0.1:2/{topic}.{kind}", "", 0, True) for topic, kind in feeds.FORMATS.items()
    )


@pytest.mark.django_db(transaction=True)
def test_one_item_is_another_thing_to_each_of_the_demos_users(users: dict[str, Any]) -> None:
    run_until_idle()
    emit("news/science", {"title": "Whales under a telescope", "text": "[rehearsal] Seen at last."})
    emit("news/science", {"title": "Whales", "text": "Without football."})
    emit("news/science", {"title": "Whales", "text": "With football."})

    from ravi_django.models import Publication

    for publication in Publication.objects.all():
        world.fan_out_run(publication.id)
    run_until_idle()

    found = {name: logged_in(users[name]).get("/feed/items/").json()["items"] for name in ("demo", "ada")}
    assert {name: [item["kept"] for item in items] for name, items in found.items()} == {
        "demo": [False, False, True],
        "ada": [False, False, True],
    }
    reasons = {name: items[-1]["reason"] for name, items in found.items()}
    assert reasons == {"demo": "[rehearsal] it has telescope", "ada": "[rehearsal] it has whales"}


@pytest.fixture
def user() -> Any:
    return get_user_model().objects.create_user("reader")  # no password: hashing one is slow


@pytest.fixture
def items(user: Any, client: Client) -> Any:
    """`items("?after=…")`: the answer to the user."""
    client.force_login(user)
    return lambda query="": client.get(f"/feed/items/{query}").json()


def id_of(row: JournalEntry) -> str:
    return str(Place(row.finished_at, row.run_id, row.seq))


def titled(answer: dict[str, Any]) -> list[str]:
    return [item["title"] for item in answer["items"]]


def test_the_items_after_one_are_there_though_committed_late(user: Any, items: Any) -> None:
    last, late, old = (curated(user, [title])[0] for title in ("newest", "late", "old"))
    JournalEntry.objects.filter(pk=late.pk).update(finished_at=timezone.now() - timedelta(seconds=30))
    JournalEntry.objects.filter(pk=old.pk).update(finished_at=timezone.now() - timedelta(hours=1))
    assert titled(items(f"?after={id_of(last)}")) == ["late", "newest"]
    assert titled(items()) == ["newest", "late", "old"]
    assert titled(items(f"?before={id_of(last)}")) == ["late", "old"]


def test_items_come_in_pages(user: Any, items: Any) -> None:
    first, *_, last, newest = curated(user, map(str, range(122)))
    pages = [items()]
    while pages[-1]["more"]:
        pages.append(items(f"?before={pages[-1]['items'][-1]['id']}"))
    assert ([len(page["items"]) for page in pages], pages[0]["after"]) == ([50, 50, 22], id_of(newest))
    # however many come at once, the pages after an item go on to the last
    after, found, pages = id_of(first), set(), []
    for _ in range(3):
        page = items(f"?after={after}")
        after = page["after"]
        found.update(titled(page))
        pages.append((len(found), page["more"]))
    assert (pages, after) == ([(51, True), (101, True), (122, False)], id_of(newest))
    # what is looked at again is the newest, and no more than a page
    found = items(f"?after={id_of(last)}")
    assert (titled(found), found["more"]) == ([*map(str, range(71, 121)), "121"], False)


def test_an_item_has_its_address(user: Any, items: Any) -> None:
    for address in ["https://example.org/a?b=c#d", "HTTP://127.0.0.1:8000/a"]:
        with case(address):
            curated(user, ["a"], url=address)
            assert items()["items"][0]["url"] == address
    # an address of no web page is left out
    for address in [
        "javascript://example.org/\nalert(1)", "java\nscript:alert(1)", "data:text/html,a", "//a.org", "https:a",
        "https://[", 7,
    ]:  # fmt: skip
        with case(address):
            curated(user, ["a"], url=address)
            assert items()["items"][0]["url"] == ""


def test_what_an_agent_logged_otherwise_is_shown_as_it_can_be(user: Any, items: Any) -> None:
    row = curated(user, [""])[0]
    JournalEntry.objects.filter(pk=row.pk).update(result={"keep": "yes", "score": "high", "headline": "H", "reason": 3})
    item = items()["items"][0]
    assert (item["title"], item["kept"], item["score"], item["reason"]) == ("H", False, None, "3")
    assert item["url"] == ""
