"""POST runs/{id}/signals/ by the name of a question: an answer to it, under the rule of who may answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django import register, signal
from ravi_django.agents import UserProxyAgent
from ravi_django.models import HumanRequest, Run, Signal
from ravi_django.testing import journal_of, run_until_idle
from tests.acceptance.api.api_support import client_of, error_of
from tests.support import world
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import CodeAgent, drive, in_background, on_postgresql, somebody_waits_for_a_lock, until
from tests.support.world import submit

pytestmark = pytest.mark.django_db(transaction=True)


def boss(user: Any, **options: Any) -> Run:
    """A run of a user proxy that nobody has driven yet."""
    return submit(register(UserProxyAgent("boss", **options)), "Send it?", user=user)


def asking(user: Any, **options: Any) -> tuple[Run, HumanRequest]:
    """One that waits for the answer."""
    run = boss(user, **options)
    run_until_idle()
    return run, HumanRequest.objects.get(run=run)


def send(client: APIClient, run: Run, name: str, payload: Any) -> Any:
    return client.post(f"/ravi/runs/{run.id}/signals/", {"name": name, "payload": payload}, format="json")


def output(run: Run) -> Any:
    run_until_idle()
    return Run.objects.get(id=run.id).output


def test_it_is_an_answer_by_whoever_is_logged_in(client: APIClient, user: Any) -> None:
    skipped = "The person skipped the question. This is no consent to anything."
    for payload, told in (
        ("Yes.", "Yes."),
        ({"text": " Yes. "}, "Yes."),
        ({"action": "answer", "text": "Yes."}, "Yes."),
        ({"action": "skip"}, skipped),
        ({"amount": 5}, '{"amount":5}'),
    ):
        run, request = asking(user)
        name = f"hitl:{request.id}" if told == skipped else request.signal
        response = send(client, run, name, payload)
        assert (response.status_code, response.json()["id"]) == (202, str(run.id)), payload
        request.refresh_from_db()
        assert (request.status, request.answered_by) == ("answered", user), payload
        assert output(run) == told


def test_the_owner_may_not_answer_what_is_asked_of_another(client: APIClient, user: Any, root: Any) -> None:
    run, request = asking(user, to="staff")

    for name in (request.signal, f"hitl:{request.id}"):
        assert send(client, run, name, "Yes, I may.").status_code == 403, name
        request.refresh_from_db()
        assert (request.status, list(Signal.objects.filter(run=run))) == ("pending", [])
        assert output(run) is None

    assert send(client_of(root), run, request.signal, "No.").status_code == 202
    assert output(run) == "No."


@pytest.mark.parametrize("to", ["staff", "user:bob", "group:finance", [("owner", 60), "staff"]])
def test_what_is_sent_before_the_question_answers_the_owners_own_alone(client: APIClient, user: Any, to: Any) -> None:
    run = boss(user, to=to)
    name = f"human_reply:{run.session_id}"

    assert send(client, run, name, "Yes, I may.").status_code == 202

    run_until_idle()
    run.refresh_from_db()
    assert run.output == ("Yes, I may." if isinstance(to, list) else None)


def test_an_agent_that_waits_for_an_answer_gets_it_from_the_sites_code_alone(client: APIClient, user: Any) -> None:
    async def story(ctx: Any, inbox: Any) -> Any:
        await ctx._log("hitl.question", {"text": "Ready?"})
        return await ctx.sleep_until_signal("human_reply:of-my-own")

    run = submit(register(CodeAgent(story, key="api_waiter")), "hi", user=user)
    assert send(client, run, "human_reply:of-my-own", {"by": "its owner"}).status_code == 202
    assert output(run) is None

    signal(run, "human_reply:of-my-own", {"by": "the warehouse"})
    assert output(run) == '{"by":"the warehouse"}'
    assert "hitl.question" in [row.name for row in journal_of(run)]


def test_a_bad_answer_names_its_field_and_an_ended_run_takes_none(client: APIClient, user: Any) -> None:
    run, request = asking(user)
    bad = [(None, "text"), ("", "text"), ({"action": "approve"}, "action"), ({"text": "x", "by": "eve"}, "payload")]

    for payload, field in bad:
        response = send(client, run, request.signal, payload)
        assert (response.status_code, error_of(response)["field"]) == (400, field), payload
    Run.objects.filter(id=run.id).update(status="failed")
    for name in (request.signal, "human_reply:x"):
        assert send(client, run, name, "Yes.").status_code == 409, name

    request.refresh_from_db()
    assert (request.status, Signal.objects.exists()) == ("pending", False)


@on_postgresql
def test_a_question_that_is_opened_meanwhile_is_not_answered_by_it(user: Any) -> None:
    """The owner's signal and the question that is not theirs to answer come at the same moment."""
    run = boss(user, to="staff")
    name = f"human_reply:{run.session_id}"
    opening, sending = threading.Event(), threading.Event()
    forget = world.people_forget_earlier  # type: ignore[attr-defined]

    def slowly(request: HumanRequest) -> None:
        forget(request)  # under the run's lock: what is sent from here on waits for the question's commit
        opening.set()
        assert sending.wait(seconds(20))

    with pytest.MonkeyPatch.context() as patch:
        world.patch(patch, "people_forget_earlier", slowly)  # type: ignore[attr-defined]
        driven = in_background(drive, run)
        assert opening.wait(seconds(20))
        sent = in_background(_try_send, run, name, user)
        until(lambda: somebody_waits_for_a_lock() or sent.done())
        sending.set()
        driven.result(BOUND_S)

    assert "ForbiddenError" in sent.result(BOUND_S)
    assert output(run) is None
    world.answer(HumanRequest.objects.get(run=run), text="No.")
    assert output(run) == "No."


def _try_send(run: Run, name: str, user: Any) -> str:
    try:
        world.replies_send(run, name, "Yes, I may.", by=user)
    except Exception as error:
        return type(error).__name__
    return "sent"


def test_a_repeated_key_is_one_answer(client: APIClient, user: Any) -> None:
    run, request = asking(user)
    body = {"name": request.signal, "payload": "Yes.", "idempotency_key": "k"}
    path = f"/ravi/runs/{run.id}/signals/"

    first, again = (client.post(path, body, format="json") for _ in range(2))
    other = client.post(path, body | {"payload": "No."}, format="json")
    name = client.post(path, body | {"name": f"hitl:{request.id}"}, format="json")
    fresh = client.post(path, body | {"idempotency_key": "k2"}, format="json")

    assert (first.status_code, again.status_code) == (202, 202)
    assert {(one.status_code, error_of(one)["code"]) for one in (other, name)} == {(409, "idempotency_mismatch")}
    assert (fresh.status_code, error_of(fresh)["code"]) == (409, "conflict")
    assert "already answered by ann" in error_of(fresh)["message"]
    assert output(run) == "Yes."


def test_a_repeated_key_is_one_early_answer(client: APIClient, user: Any) -> None:
    run = boss(user)
    name = f"human_reply:{run.session_id}"

    sent = [
        client.post(
            f"/ravi/runs/{run.id}/signals/", {"name": name, "payload": text, "idempotency_key": "k"}, format="json"
        ).status_code
        for text in ("Yes.", "Yes.", "No.")
    ]

    assert (sent, Signal.objects.count()) == ([202, 202, 409], 1)
    assert output(run) == "Yes."
