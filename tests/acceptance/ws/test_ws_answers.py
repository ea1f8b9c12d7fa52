"""Answers that come over a socket, whichever it is: one service."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asking import answer, approval, ask
from django.contrib.auth.models import Group
from django.db import OperationalError

from ravi_django.kernel import ConflictError
from ravi_django.models import HumanRequest
from ravi_django.ws import commands
from tests.support import world
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


def test_what_is_wrong_with_an_answer_is_named(opened, run, demo) -> None:
    request, others, taken = ask(run), approval(run, to="staff", path="2"), ask(run, path="3")
    world.answer(taken, text="red", by=demo)
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
        assert answer(client, "\0", text="yes")["code"] == "invalid_input"
        for key in (UUID(int=7), "nonsense", "x" * 5000):
            refused = answer(client, key, text="yes")
            assert (refused["type"], refused["code"]) == ("error", "not_found")
            assert len(json.dumps(refused)) < 1000
        refused = answer(client, others.id, "approve")  # on the run's own socket, by its owner
        late = answer(client, taken.id, text="blue")

    assert (refused["code"], refused["request"]) == ("forbidden", str(others.id))
    assert late["code"] == "conflict" and "already answered by demo" in late["message"]
    assert HumanRequest.objects.filter(status="pending").count() == 2


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
