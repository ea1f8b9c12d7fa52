"""Answers that come over a socket, whichever it is: one service, and the first answer wins."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asking import answer, approval, ask
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import OperationalError
from websockets.asyncio.client import connect

from ravi_django.kernel import ConflictError
from ravi_django.models import HumanRequest
from ravi_django.ws import commands
from tests.support import world
from tests.support.cases import sizes
from tests.support.patience import BOUND_S
from tests.support.world import with_retry

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def opened(server, demo, ticket, run) -> Any:
    """A socket of this kind, about the run where it is about one."""
    paths = {"runs": f"runs/{run.id}", "sessions": f"sessions/{run.session_id}", "requests": "requests"}
    return lambda kind="requests", user=demo: server.connect(f"/ws/ravi/{paths[kind]}/?ticket={ticket(user)}")


@pytest.mark.parametrize("kind", ["runs", "sessions", "requests"])
def test_an_answer_on_any_socket_whichever_run_it_is_for(opened, run, submitted, demo, kind) -> None:
    for asked in (run, submitted(send=lambda run_id: None)):
        request = ask(asked)
        with opened(kind) as client:
            accepted = answer(client, request.id, text="the red one", reason="it is prettier")

        assert accepted == {"type": "accepted", "request": str(request.id), "run": str(asked.id)}
        request.refresh_from_db()
        assert (request.status, request.answered_by) == ("answered", demo)
        assert request.answer == {"action": "answer", "text": "the red one", "reason": "it is prettier", "by": "demo"}


def test_each_action_with_what_goes_with_it(opened, run, demo) -> None:
    edited, sticky = approval(run, to="owner", path="1"), approval(run, to="owner", path="2")
    input_ = ask(run, "Two things", kind=HumanRequest.Kind.INPUT, details={"questions": {"a": "A?", "b": "B?"}})
    uncertain = ask(run, "Was it?", kind=HumanRequest.Kind.UNCERTAIN, to="owner", tool="send_invoice")

    with opened() as client:
        answers = [
            answer(client, edited.id, "edit", arguments={"customer": "ACME", "amount": 7}),
            answer(client, sticky.id, "deny", sticky=True, reason="never", text=None),
            answer(client, input_.id, values={"a": "1", "b": "2"}, version=1),
            answer(client, uncertain.id, "resolve", outcome="happened", result={"paid": True}),
        ]

    assert [found["type"] for found in answers] == ["accepted"] * 4
    kept = {row.id: row.answer for row in HumanRequest.objects.all()}
    assert kept[edited.id]["arguments"] == {"customer": "ACME", "amount": 7}
    assert (kept[sticky.id]["sticky"], kept[sticky.id]["reason"]) == (True, "never")
    assert kept[input_.id]["values"] == {"a": "1", "b": "2"}
    assert (kept[uncertain.id]["outcome"], kept[uncertain.id]["result"]) == ("happened", {"paid": True})


def test_what_is_wrong_with_an_answer_is_named(opened, run) -> None:
    request, others = ask(run), approval(run, to="staff", path="2")
    said = {"action": "answer", "text": "x"}

    with opened("runs") as client:
        for wrong, field in (
            *(({"action": bad}, "action") for bad in ("dance", None)),
            *(({"text": bad}, "text") for bad in (None, 7)),
            *(({name: bad}, name) for name, bad in (("values", {"a": "b"}), ("arguments", [1]), ("sticky", "true"))),
            *(({name: bad}, name) for name, bad in (("version", True), ("by", "admin"))),
        ):
            refused = answer(client, request.id, **{**said, **wrong})
            assert (refused["type"], refused["code"], refused["field"]) == ("error", "invalid_input", field), wrong
        for key in (UUID(int=7), "nonsense", "\0", "x" * 5000):
            refused = answer(client, key, text="yes")
            assert (refused["type"], refused["code"]) == ("error", "not_found")
            assert len(json.dumps(refused)) < 1000
        refused = answer(client, others.id, "approve")  # on the run's own socket, by its owner

    assert (refused["code"], refused["request"]) == ("forbidden", str(others.id))
    assert set(HumanRequest.objects.values_list("status", flat=True)) == {"pending"}


@pytest.mark.parametrize("sockets", sizes(10, 100))
def test_of_many_answers_at_once_one_is_accepted(server, run, ticket, sockets) -> None:
    group = Group.objects.create(name="many")
    users = [get_user_model().objects.create_user(f"u{number}") for number in range(5)]
    group.user_set.add(*users)
    request = approval(run, to="group:many")
    paths = [f"ws://127.0.0.1:{server.port}/ws/ravi/requests/?ticket={ticket(users[n % 5])}" for n in range(sockets)]

    async def one(path: str, ready: asyncio.Barrier, number: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with connect(path, proxy=None) as client:
            assert json.loads(await client.recv())["id"] == str(request.id)
            await ready.wait()
            said = {"type": "answer", "request": str(request.id), "action": "deny", "reason": f"by socket {number}"}
            await client.send(json.dumps(said))
            own, closed = None, []
            while own is None or not closed:
                found = json.loads(await asyncio.wait_for(client.recv(), BOUND_S))
                if found["type"] in ("accepted", "error"):
                    own = found
                else:
                    closed.append(found)
            return own, closed

    async def all_of_them() -> list[Any]:
        ready = asyncio.Barrier(sockets)
        return await asyncio.gather(*(one(path, ready, number) for number, path in enumerate(paths)))

    found = asyncio.run(all_of_them())

    request.refresh_from_db()
    accepted = [number for number, (own, _) in enumerate(found) if own["type"] == "accepted"]
    assert len(accepted) == 1
    assert request.answer["reason"] == f"by socket {accepted[0]}"
    winner = users[accepted[0] % 5].username
    others = [own for own, _ in found if own["type"] == "error"]
    assert {own["code"] for own in others} == {"conflict"}
    assert all(f"by {winner}" in own["message"] for own in others)
    assert all([shown["type"] for shown in closed] == ["request.closed"] for _, closed in found)
    assert {closed[0]["answered_by"] for _, closed in found} == {winner}


# ------------------------------------------------------------------------ a connection that breaks at the commit


@pytest.fixture
def answering_once(run, demo) -> Any:
    """An answer on a database thread of a socket, which repeats it when its connection breaks."""

    def answer_(request: HumanRequest, **said: Any) -> Any:
        given = commands.Answer(type="answer", request=str(request.id), action="answer", **said)
        return with_retry(commands.Answering(given, demo))

    return answer_


def breaking(monkeypatch: pytest.MonkeyPatch, *, before: Any = None) -> None:
    """The first `human.answer` loses its connection, at its beginning or once it is committed."""
    real, calls = world.answer, []

    def breaks(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            return real(*args, **options)
        if before is not None:
            before()
        else:
            real(*args, **options)
        raise OperationalError("gone") from psycopg.OperationalError("gone")

    world.patch(monkeypatch, "answer", breaks)


def test_an_answer_that_was_committed_is_no_conflict_with_itself(answering_once, run, demo, monkeypatch) -> None:
    request = ask(run)
    breaking(monkeypatch)

    assert answering_once(request, text="  red ") == run.id

    request.refresh_from_db()
    assert (request.answer["text"], request.version) == ("red", 2)
    given = ask(run)
    world.answer(given, text="red", by=demo)
    with pytest.raises(ConflictError):  # it was given before, though it says the same
        answering_once(given, text="red")


@pytest.mark.parametrize(("text", "who"), [("red", "stranger"), ("blue", "demo")])
def test_what_was_answered_meanwhile_is_one(answering_once, run, demo, stranger, monkeypatch, text, who) -> None:
    by = {"demo": demo, "stranger": stranger}[who]
    group = Group.objects.create(name="g")
    group.user_set.add(demo, stranger)
    request = ask(run, to="group:g")
    real = world.answer
    breaking(monkeypatch, before=lambda: real(request.id, text=text, by=by))

    with pytest.raises(ConflictError, match=f"by {who}"):
        answering_once(request, text="red")
