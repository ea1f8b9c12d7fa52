"""Follows and publications in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.utils import timezone

import ravi_django
from ravi_django.models import FeedItem, Follow, Publication, Session
from tests.support import world
from tests.support.inbox import html_of
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)

EVIL = "<script>alert('evil')</script>\u202e"
FOLLOWS, PUBLICATIONS = "/admin/ravi/follow/", "/admin/ravi/publication/"


@pytest.fixture
def follow(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Follow:
    world.silence(monkeypatch, "fan_out_hint")

    async def story(ctx: Any, inbox: Any) -> None: ...

    ann = get_user_model().objects.create_user("ann")
    session = world.create_session(Session(owner=ann, title=EVIL))
    return ravi_django.follow(code(story), "news/sport", user=ann, session=session, metadata={"likes": EVIL})[0]


@pytest.fixture
def publication(follow: Follow) -> Publication:
    return ravi_django.emit("news/sport", f"Goal {EVIL}", user=follow.owner)


def page(client: Any, address: str) -> str:
    html = html_of(client.get(address))
    assert EVIL[:20] not in html and "\u202e" not in html
    return html


def test_follows_are_listed_searched_and_shown(root: Any, follow: Follow) -> None:
    ravi_django.follow("test/code", "weather/rome", tenant="acme", every_s=60)

    assert "weather/rome" in page(root, FOLLOWS)
    for term in ("news/s", "ann", "test/code", str(follow.id), str(follow.id)[:13]):
        assert "news/sport" in page(root, f"{FOLLOWS}?q={term}"), term
    assert "news/sport" not in page(root, f"{FOLLOWS}?q=acme")
    assert "weather/rome" not in page(root, f"{FOLLOWS}?bound=yes")
    assert "news/sport" not in page(root, f"{FOLLOWS}?bound=no")
    assert "news/sport" not in page(root, f"{FOLLOWS}?delivery=digest")
    assert "weather/rome" not in page(root, f"{FOLLOWS}?delivery=once")
    html = page(root, f"{FOLLOWS}{follow.pk}/change/")
    assert f"/admin/ravi/session/{follow.session_id}/change/" in html
    assert "likes" in html


def test_a_publication_shows_how_far_it_has_come(root: Any, publication: Publication) -> None:
    html = page(root, PUBLICATIONS)
    assert "Goal" in html and "0 of 1" in html
    assert "1 remaining" in page(root, f"{PUBLICATIONS}{publication.pk}/change/")
    for term in ("news/", publication.message_id, str(publication.id)):
        assert "Goal" in page(root, f"{PUBLICATIONS}?q={term}"), term
    assert "Goal" in page(root, f"{PUBLICATIONS}?state=open")
    assert "Goal" not in page(root, f"{PUBLICATIONS}?state=done")
    assert "Goal" not in page(root, f"{PUBLICATIONS}?q=weather")

    Publication.objects.update(done_at=timezone.now())

    html = page(root, f"{PUBLICATIONS}{publication.pk}/change/")
    assert '<div class="readonly">1</div>' in html and "remaining" not in html


def test_an_operator_ends_a_follow(operator: Any, follow: Follow, publication: Publication) -> None:
    FeedItem.objects.create(follow=follow, publication=publication, due_at=timezone.now())
    client = operator("view_follow", "delete_follow")

    assert b"Are you sure" in client.get(f"{FOLLOWS}{follow.pk}/delete/").content
    client.post(f"{FOLLOWS}{follow.pk}/delete/", {"post": "yes"})

    assert not Follow.objects.exists() and not FeedItem.objects.exists()
    assert LogEntry.objects.get().object_id == str(follow.pk)


@pytest.mark.parametrize("address", [FOLLOWS, PUBLICATIONS])
def test_a_page_costs_as_many_queries_for_many(
    root: Any, follow: Follow, publication: Publication, address: str, django_assert_max_num_queries: Any
) -> None:
    for number in range(10):
        ravi_django.follow("test/code", f"news/{number}", user=follow.owner, session=follow.session)
        ravi_django.emit("news/sport", "x", user=follow.owner)

    with django_assert_max_num_queries(10):
        page(root, address)
