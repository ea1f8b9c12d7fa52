"""POST runs/{id}/signals/ by the name of a question: an answer to it, under the rule of who may answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django import register
from ravi_django.agents import UserProxyAgent
from ravi_django.kernel import AgentId
from ravi_django.models import HumanRequest, Run, Signal
from ravi_django.testing import run_until_idle
from tests.acceptance.api.api_support import client_of, error_of
from tests.support import world
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import CodeAgent, drive, in_background, on_postgresql, somebody_waits_for_a_lock, until
from tests.support.world import submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_proxy_left() -> Iterator[None]:
    yield
    world.unregister(AgentId("user_proxy", "boss"))


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


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ("Yes.", "Yes."),
        ({"text": " Yes. "}, "Yes."),
        ({"action": "answer", "text": "Yes."}, "Yes."),
        ({"action": "skip"}, "The person skipped the question. This is no consent to anything."),
        ({"amount": 5}, '{"amount":5}'),
    ],
)
def test_it_is_an_answer_by_whoever_is_logged_in(client: APIClient, user: Any, payload: Any, told: str) -> None:
    run, request = asking(user)

    response = send(client, run, request.signal, payload)

    assert (response.status_code, response.json()["id"]) == (202, str(run.id))
    request.refresh_from_db()
    assert (request.status, request.answered_by) == ("answered", user)
    assert output(run) == told


def test_a_request_may_be_named_by_its_id(client: APIClient, user: Any) -> None:
    run, request = asking(user)

    assert send(client, run, f"hitl:{request.id}", "Yes.").status_code == 202

    assert output(run) == "Yes."


def test_the_second_answer_is_409_with_the_winners_name(client: APIClient, user: Any) -> None:
    run, request = asking(user)
    send(client, run, request.signal, "Yes.")

    again = send(client, run, request.signal, "No.")

    assert again.status_code == 409
    assert "answered already by ann" in error_of(again)["message"]
    assert output(run) == "Yes."


@pytest.mark.parametrize("name", ["signal", "hitl"])
def test_the_owner_may_not_answer_what_is_asked_of_another(client: APIClient, user: Any, name: str) -> None:
    run, request = asking(user, to="staff")

    response = send(client, run, request.signal if name == "signal" else f"hitl:{request.id}", "Yes, I may.")

    assert response.status_code == 403
    request.refresh_from_db()
    assert (request.status, list(Signal.objects.filter(run=run))) == ("pending", [])
    assert output(run) is None


def test_a_stranger_does_not_even_see_the_run(strange_client: APIClient, user: Any) -> None:
    run, request = asking(user)

    assert send(strange_client, run, request.signal, "Yes.").status_code == 404

    request.refresh_from_db()
    assert (request.status, Signal.objects.count()) == ("pending", 0)


@pytest.mark.parametrize("to", ["staff", "user:bob", "group:finance", [("owner", 60), "staff"]])
def test_what_is_sent_before_the_question_answers_the_owners_own_alone(client: APIClient, user: Any, to: Any) -> None:
    run = boss(user, to=to)
    name = f"human_reply:{run.session_id}"

    assert send(client, run, name, "Yes, I may.").status_code == 202

    run_until_idle()
    run.refresh_from_db()
    assert run.output == ("Yes, I may." if isinstance(to, list) else None)


def test_nor_the_owners_own_where_the_site_has_the_last_word(client: APIClient, user: Any, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": lambda user, request: False}
    run = boss(user, to="owner")

    assert send(client, run, f"human_reply:{run.session_id}", "Yes, I may.").status_code == 202

    assert output(run) is None


@pytest.mark.parametrize("name", ["human_reply:of-my-own", "hitl:nonsense"])
def test_no_agent_waits_for_a_signal_that_its_owner_may_send_as_an_answer(
    client: APIClient, user: Any, name: str
) -> None:
    async def story(ctx: Any, inbox: Any) -> Any:
        return await ctx.sleep_until_signal(name)

    run = submit(register(CodeAgent(story, key="api_waiter")), "hi", user=user)
    send(client, run, name, {"by": "the warehouse"})

    assert output(run) is None
    assert "ask_human" in Run.objects.get(id=run.id).error["message"]


@pytest.mark.parametrize(
    ("payload", "field"),
    [(None, "text"), ("", "text"), ({"action": "approve"}, "action"), ({"text": "x", "by": "eve"}, "payload")],
)
def test_a_bad_answer_names_its_field(client: APIClient, user: Any, payload: Any, field: str) -> None:
    run, request = asking(user)

    response = send(client, run, request.signal, payload)

    assert (response.status_code, error_of(response)["field"]) == (400, field)
    request.refresh_from_db()
    assert request.status == "pending"


def test_a_run_that_has_ended_takes_none(client: APIClient, user: Any) -> None:
    run, request = asking(user)
    Run.objects.filter(id=run.id).update(status="failed")

    assert send(client, run, request.signal, "Yes.").status_code == 409
    assert send(client, run, "human_reply:x", "Yes.").status_code == 409

    assert not Signal.objects.exists()


def test_staff_who_sees_the_run_answers_by_its_signal(user: Any, django_user_model: Any) -> None:
    run, request = asking(user, to="staff")
    root = django_user_model.objects.create_superuser("root")

    assert send(client_of(root), run, request.signal, "No.").status_code == 202

    assert output(run) == "No."


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
