"""The requests socket: what people are asked, live, each to those whom it concerns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asking import answer, approval, ask, frame, until
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone
from websockets.exceptions import ConnectionClosed

from ravi_django.models import HumanRequest
from ravi_django.signals import request_changed
from ravi_django.ws import requests
from tests.support import world
from tests.support.world import records_notify

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def opened(server, demo, ticket) -> Any:
    return lambda user=demo, tail="": server.connect(f"/ws/ravi/requests/?ticket={ticket(user)}{tail}")


@pytest.fixture
def finance(stranger) -> Any:
    """A member of the group finance."""
    stranger.groups.add(Group.objects.create(name="finance"))
    return stranger


@pytest.fixture
def hints_alone(monkeypatch) -> None:
    """Nothing is found by the clock."""
    monkeypatch.setattr(requests, "COMPARE_S", 1000.0)


@pytest.fixture
def no_hints(monkeypatch) -> None:
    """Each hint is lost; the comparison finds what it would have told of."""
    monkeypatch.setattr(world.ValkeyBuffer, "hint", lambda buffer, topic: None)
    monkeypatch.setattr(requests, "COMPARE_S", 0.3)


def settled(client: Any, run: Any, **asked: Any) -> dict[str, Any]:
    """Once the first request is shown the subscription stands, and its first look is over."""
    first = ask(run, "first", **asked)
    return until(client, "request", id=str(first.id))


def test_on_connecting_comes_what_is_pending_the_oldest_first(opened, run, demo) -> None:
    first, second = ask(run, "one"), ask(run, "two", choices=["a", "b"])
    done = ask(run, "done")
    world.answer(done, text="yes", by=demo)

    with opened() as client:
        frames = [frame(client), frame(client)]

    assert [found["id"] for found in frames] == [str(first.id), str(second.id)]
    assert [found["seq"] for found in frames] == [1, 2]
    shown = frames[1]
    assert (shown["type"], shown["run"], shown["text"], shown["choices"]) == ("request", str(run.id), "two", ["a", "b"])
    assert (shown["may_answer"], shown["pending"], shown["version"]) == (True, 2, 1)
    assert shown["ts"].endswith("Z")


def test_what_opens_and_is_answered_while_one_watches(hints_alone, opened, run, demo) -> None:
    evil = "<script>alert('x')</script>&amp;"  # is a text
    with opened() as client:
        settled(client, run)

        request = approval(run, to="owner", details={"context": evil})
        shown = frame(client)
        world.answer(request, "deny", reason="no money", by=demo)
        closed = frame(client)

    told = [shown[name] for name in ("type", "id", "tool", "risk", "context", "pending")]
    assert told == ["request", str(request.id), "send_invoice", "high", evil, 2]
    assert shown["arguments"] == {"customer": "ACME", "amount": 100}
    became = [closed[name] for name in ("type", "seq", "id", "status", "answered_by", "pending")]
    assert became == ["request.closed", 3, str(request.id), "answered", "demo", 1]


def test_the_newest_are_shown_first_when_there_are_many(opened, run, monkeypatch) -> None:
    monkeypatch.setattr(requests, "FIRST", 3)
    monkeypatch.setattr(requests, "PAGE", 2)
    monkeypatch.setattr(requests, "COMPARE_S", 0.1)
    asked = [ask(run, f"q{number}") for number in range(6)]

    with opened() as client:
        frames = [frame(client) for _ in range(3)]
        late = ask(run, "late")
        then = frame(client)  # a comparison shows no more of those that were left out

    assert [found["id"] for found in frames] == [str(request.id) for request in asked[3:]]
    assert frames[0]["pending"] == 6
    assert then["id"] == str(late.id)


def test_what_is_pending_is_counted_once_for_several_pages(opened, run, monkeypatch) -> None:
    """Of thousands that takes longer than all the rest of a page."""
    counted: list[int | None] = []
    look = requests.look_at
    monkeypatch.setattr(requests, "look_at", lambda *given: counted.append(given[-1]) or look(*given))
    monkeypatch.setattr(requests, "PAGE", 2)
    for number in range(5):
        ask(run, f"q{number}")

    with opened() as client:
        frames = [frame(client) for _ in range(5)]
        first = counted[:3]
        ask(run, "late")
        late = until(client, "request")

    assert first == [None, 5, 5]
    assert [found["pending"] for found in (*frames, late)] == [5, 5, 5, 5, 5, 6]


def test_nobody_else_hears_of_it(opened, run, stranger) -> None:
    with opened(stranger) as client:
        settled(client, run, to="user:stranger")
        ask(run, "for demo alone")
        theirs = approval(run, to="user:stranger")

        assert frame(client)["id"] == str(theirs.id)


def test_the_owner_reads_what_others_are_asked(opened, run, finance) -> None:
    request = approval(run, to="group:finance")
    with opened() as client, opened(finance) as theirs:
        mine, given = frame(client), frame(theirs)
        refused = answer(client, request.id, "approve")
        accepted = answer(theirs, request.id, "approve")
        closed = until(client, "request.closed")

    assert (mine["may_answer"], mine["pending"], mine["actions"]) == (False, 0, [])
    assert (given["may_answer"], given["pending"]) == (True, 1)
    assert (refused["type"], refused["code"], refused["request"]) == ("error", "forbidden", str(request.id))
    assert accepted == {"type": "accepted", "request": str(request.id), "run": str(run.id)}
    assert (closed["id"], closed["answered_by"]) == (str(request.id), "stranger")


# ------------------------------------------------------------------------------------ hints, and without them


def reassigned(request: HumanRequest, to: str) -> None:
    with transaction.atomic():
        HumanRequest.objects.filter(id=request.id).update(to=to, version=request.version + 1)
        request.refresh_from_db()
        records_notify(request_changed, request)


@pytest.mark.parametrize("way", ["hints_alone", "no_hints"])
def test_who_is_asked_instead_hears_of_it_and_who_was_asked_too(way, request, opened, run, finance, demo) -> None:
    request.getfixturevalue(way)
    with opened(finance) as client, opened() as owners:
        settled(client, run, to="group:finance")
        asked = approval(run, to="user:nobody")
        until(owners, "request", id=str(asked.id))

        reassigned(asked, "group:finance")
        shown = frame(client)
        again = until(owners, "request", version=2)
        reassigned(asked, "user:nobody")
        closed = frame(client)

    assert (shown["type"], shown["id"], shown["may_answer"]) == ("request", str(asked.id), True)
    assert (again["id"], again["to"], again["may_answer"]) == (str(asked.id), "group:finance", False)
    became = [closed[name] for name in ("type", "id", "status", "answered_by", "run")]
    assert became == ["request.closed", str(asked.id), "withdrawn", None, str(run.id)]


def test_a_buffer_that_is_down_only_delays(opened, run, monkeypatch, settings) -> None:
    settings.RAVI = {**settings.RAVI, "STREAM_URL": "redis://127.0.0.1:1/0"}
    monkeypatch.setattr(requests, "COMPARE_S", 0.3)

    with opened() as client:
        request = ask(run)

        assert frame(client)["id"] == str(request.id)


def test_a_site_without_redis_goes_by_the_clock(hints_alone, opened, run, settings) -> None:
    settings.CHANNEL_LAYERS = {}
    settings.RAVI = {**settings.RAVI, "STREAM_URL": None, "ENGINE": "inline"}

    with opened() as client:
        ask(run)
        frame(client)
        request = ask(run, "and live?")

        assert frame(client)["id"] == str(request.id)


# ---------------------------------------------------------------------------------------------------- rights


def test_who_is_shut_out_is_told_nothing_more(opened, run, finance, monkeypatch) -> None:
    monkeypatch.setattr(requests, "COMPARE_S", 0.2)
    monkeypatch.setattr(requests, "RIGHTS_S", 0.2)
    request = approval(run, to="group:finance")
    with opened(finance) as client:
        frame(client)

        finance.groups.clear()
        closed = until(client, "request.closed")
        assert (closed["id"], closed["status"], closed["pending"]) == (str(request.id), "withdrawn", 0)
        finance.is_active = False
        finance.save()

        with pytest.raises(ConnectionClosed):
            for _ in range(100):  # a look that had begun before may still tell of what it saw
                frame(client)
        assert client.close_code == 4401


def test_rights_that_grow_or_shrink_without_a_change_of_the_request_are_shown(
    opened, run, demo, monkeypatch, settings
) -> None:
    settings.RAVI = {**settings.RAVI, "FOUR_EYES": False}
    monkeypatch.setattr(requests, "COMPARE_S", 0.2)
    monkeypatch.setattr(requests, "RIGHTS_S", 0.2)
    approval(run, to="group:finance")
    group = Group.objects.create(name="finance")
    with opened() as client:
        before = frame(client)
        demo.groups.add(group)
        after = frame(client)
        demo.groups.clear()
        again = frame(client)

    assert [found["may_answer"] for found in (before, after, again)] == [False, True, False]


@pytest.mark.parametrize("hook", [None, lambda user, request: True])
def test_what_can_be_answered_only_later_is_offered_then(opened, run, settings, monkeypatch, hook) -> None:
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": hook}
    monkeypatch.setattr(requests, "COMPARE_S", 0.2)
    asked = ask(run, not_before=timezone.now() + timedelta(hours=1))
    with opened() as client:
        before = frame(client)
        HumanRequest.objects.filter(id=asked.id).update(not_before=timezone.now() - timedelta(hours=1))
        after = frame(client)
        HumanRequest.objects.filter(id=asked.id).update(expires_at=timezone.now() - timedelta(hours=1))
        late = frame(client)

    shown = [(found["may_answer"], bool(found["actions"]), found["pending"]) for found in (before, after, late)]
    assert shown == [(False, False, 0), (True, True, 1), (False, False, 0)]


# ------------------------------------------------------------------------------------------------ its own life


def test_other_frames_are_refused(opened, run) -> None:
    with opened() as client:
        for sent in ('{"type": "cancel"}', '{"type": "message", "text": "hi"}'):
            client.send(sent)
            refused = frame(client)
            assert (refused["type"], refused["code"], refused["field"]) == ("error", "invalid_input", "type"), sent
        request = ask(run)  # the socket is still there

        assert until(client, "request")["id"] == str(request.id)
    run.refresh_from_db()
    assert run.cancel_requested_at is None


def test_a_thousand_hints_are_a_few_looks(hints_alone, opened, run, monkeypatch) -> None:
    looks: list[int] = []
    look = requests.look_at
    monkeypatch.setattr(requests, "look_at", lambda user, ids, *more: looks.append(len(ids)) or look(user, ids, *more))
    with opened() as client:
        settled(client, run)
        request = ask(run, "often")
        until(client, "request", id=str(request.id))
        looks.clear()

        for _ in range(1000):
            world.get_buffer().hint(world.REQUESTS)
        last = ask(run, "last")
        until(client, "request", id=str(last.id))

    assert len(looks) < 10
