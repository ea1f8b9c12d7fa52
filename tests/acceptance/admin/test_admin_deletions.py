"""Deleting what has rows of its own: a source, a schedule, a follow, and the user whose they are."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.utils import timezone

import ravi_django
from ravi_django.models import FeedItem, Follow, Publication, Run, Schedule, ScheduleTick, Source, SourceItem
from tests.support import world
from tests.support.inbox import html_of, logged_in, person
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "test/code"


@pytest.fixture
def ann(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Somebody with a row of everything that goes with them, or stays without them."""
    world.silence(monkeypatch, "fan_out_hint")

    async def story(ctx: Any, inbox: Any) -> None: ...

    code(story)
    user = get_user_model().objects.create_user("ann")
    items_of(Source.objects.create(name="News", kind="webhook", agent=AGENT, owner=user), 3)
    schedule = Schedule.objects.create(name="daily", agent=AGENT, input="x", every_s=60, owner=user)
    run = world.submit(AGENT, "hi", user=user)
    ScheduleTick.objects.create(schedule=schedule, at=timezone.now(), run=run)
    follow, _ = ravi_django.follow(AGENT, "news/sport", user=user)
    publication = ravi_django.emit("news/sport", "goal", user=user)
    FeedItem.objects.create(follow=follow, publication=publication, due_at=timezone.now())
    return user


def items_of(source: Source, count: int) -> None:
    names = [f"{number:064}" for number in range(count)]
    SourceItem.objects.bulk_create([SourceItem(source=source, identity=name, digest=name) for name in names])


def delete(client: Any, address: str) -> int:
    """Look at the page that asks, and say yes."""
    client.get(address)
    return int(client.post(address, {"post": "yes"}).status_code)


def page_of(user: Any) -> str:
    return f"/admin/auth/user/{user.pk}/delete/"


def test_a_source_goes_with_what_it_has_brought(ann: Any) -> None:
    editor = person("ed", may=("view_source", "delete_source"))
    source = Source.objects.create(name="Mine", kind="webhook", agent=AGENT, owner=editor)
    items_of(source, 1_500)
    address = f"/admin/ravi/source/{source.pk}/delete/"

    html = html_of(logged_in(editor).get(address))

    assert "1500" in html.replace(",", "") and html.count("0000000001") == 0, "a count, and not each of them"
    assert delete(logged_in(editor), address) == 302
    assert (Source.objects.count(), SourceItem.objects.count()) == (1, 3)


def test_a_user_goes_with_all_that_is_theirs_alone(root: Any, ann: Any) -> None:
    assert delete(root, page_of(ann)) == 302

    assert not get_user_model().objects.filter(username="ann").exists()
    assert not any(model.objects.exists() for model in (Source, SourceItem, Schedule, ScheduleTick, Follow, FeedItem))
    assert root.get("/admin/ravi/publication/").status_code == root.get("/admin/ravi/auditrecord/").status_code == 200
    world.erasing_sweep()
    assert not Run.objects.exists() and Publication.objects.get().owner is None


def test_a_user_whose_items_one_may_not_delete_stays(ann: Any) -> None:
    manager = person("manager", may=("delete_schedule", "delete_follow"))
    manager.user_permissions.add(*Permission.objects.filter(codename__in=("view_user", "delete_user")))

    assert delete(logged_in(manager), page_of(ann)) == 403
    assert SourceItem.objects.count() == 3
