"""OpenAI's API for agents: by the official client, against a real server, and by litellm."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import redis
from django.core.files.base import ContentFile
from django.db import connections
from rest_framework.authtoken.models import Token

from project.process import wait_until
from ravi_django import people
from ravi_django.api import exchange, sse
from ravi_django.api.base import max_body
from ravi_django.models import HumanRequest, Run, Session, Turn
from ravi_django.services import pieces
from ravi_django.services.pieces import Ended
from tests.acceptance.api.api_support import AGENT, PAID, RUNSERVER, client_of
from tests.support import world
from tests.support.docs import Page
from tests.support.patience import BOUND_S

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("payers")]
ASK = [{"role": "user", "content": "6 * 7?"}]


@pytest.fixture
def ai(server: str, key: str) -> Iterator[openai.OpenAI]:
    with httpx.Client(trust_env=False) as web:
        yield openai.OpenAI(base_url=f"{server}/ravi/v1", api_key=key, http_client=web, timeout=BOUND_S)


def session_of(answer: Any) -> dict[str, Any]:
    return {"session": answer.metadata["session"]}


def test_the_agents_that_the_user_may_run_are_models(ai: openai.OpenAI) -> None:
    assert AGENT in [model.id for model in ai.models.list()]


def test_a_chat_streams_its_text_and_its_session_continues(ai: openai.OpenAI, worker: None) -> None:
    stream = ai.chat.completions.create(model=AGENT, messages=ASK, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)

    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == "It is 42." and len([piece for piece in pieces if piece]) > 0
    assert chunks[-2].choices[0].finish_reason == "stop" and chunks[-1].usage.completion_tokens == 6

    said = [*ASK, {"role": "assistant", "content": "It is 42."}, {"role": "user", "content": "Again?"}]
    answer = ai.chat.completions.create(model=AGENT, messages=said, metadata=session_of(chunks[0]))
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("It is 42.", "stop")
    session = Session.objects.get()
    assert session_of(answer) == {"session": str(session.id)}
    assert [turn.content[0]["text"] for turn in session.turns.filter(role="user")] == ["6 * 7?", "Again?"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_answers_approvals_by_tool_messages(ai: openai.OpenAI, worker: None, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "pay"}]
    if stream:
        with ai.chat.completions.stream(model="react/payer", messages=messages) as events:
            first = events.get_final_completion()
    else:
        first = ai.chat.completions.create(model="react/payer", messages=messages)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls" and PAID == []
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["approval", "approval"]
    assert [json.loads(call.function.arguments)["arguments"] for call in calls] == [{"amount": 5}, {"amount": 6}]

    words = ["approve", '{"action": "deny", "reason": "too much"}']
    messages.append(choice.message.model_dump(include={"role", "content", "tool_calls"}))
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": word} for call, word in zip(calls, words, strict=True)
    ]
    done = ai.chat.completions.create(model="react/payer", messages=messages, metadata=session_of(first))

    assert (done.choices[0].message.content, PAID) == ("done", [5])
    again = ai.chat.completions.create(model="react/payer", messages=messages, metadata=session_of(first))
    assert (again.id, again.choices[0].message.content, PAID) == (first.id, "done", [5])
    messages[-1]["content"] = "approve"
    with pytest.raises(openai.BadRequestError, match="not the id of an open request"):
        ai.chat.completions.create(model="react/payer", messages=messages, metadata=session_of(first))


def test_all_answers_are_checked_before_the_first_counts(ai: openai.OpenAI, worker: None, user: Any) -> None:
    first = ai.chat.completions.create(model="react/payer", messages=ASK)
    calls = first.choices[0].message.tool_calls
    where = {"model": "react/payer", "metadata": session_of(first)}
    words = zip(calls, ("approve", "perhaps"), strict=True)

    with pytest.raises(openai.BadRequestError, match="perhaps"):
        ai.chat.completions.create(
            messages=[{"role": "tool", "tool_call_id": call.id, "content": word} for call, word in words], **where
        )
    for other in (calls[0].id, calls[0].id.upper()):  # the same request
        with pytest.raises(openai.BadRequestError, match="two different answers"):
            ai.chat.completions.create(
                messages=[
                    {"role": "tool", "tool_call_id": call, "content": word}
                    for call, word in ((calls[0].id, "approve"), (other, "deny"))
                ],
                **where,
            )
    with pytest.raises(openai.ConflictError, match=f"answer request {calls[0].id} .* first"):
        ai.chat.completions.create(messages=ASK, **where)
    other = {"session": str(world.create_session(Session(owner=user)).id)}
    answer: Any = [{"role": "tool", "tool_call_id": calls[0].id, "content": "approve"}]
    with pytest.raises(openai.BadRequestError, match="not the id of an open request"):
        ai.chat.completions.create(model="react/payer", messages=answer, metadata=other)

    spelled: Any = [
        {"role": "tool", "tool_call_id": call.id, "content": '{"action":' + " " * spaces + '"approve"}'}
        for call in calls
        for spaces in range(26)
    ]
    with pytest.raises(openai.APIStatusError, match="at most 50 answers"):
        ai.chat.completions.create(messages=spelled, **where)

    assert (HumanRequest.objects.filter(status="pending").count(), Run.objects.count()) == (2, 1)
    twice: Any = [
        {"role": "tool", "tool_call_id": call.id, "content": word} for call in calls for word in ["approve"] * 250
    ]
    twice.append({"role": "tool", "tool_call_id": calls[0].id, "content": '{"action": "approve"}'})
    assert ai.chat.completions.create(messages=twice, **where).choices[0].message.content == "done"
    assert PAID == [5, 6]


def test_a_typed_agent_answers_with_json_and_a_long_history_is_read(ai: openai.OpenAI, worker: None) -> None:
    said = [{"role": "user", "content": "x" * max_body()}, {"role": "assistant", "content": "Yes?"}, *ASK]
    chat = ai.chat.completions.create(model="react/typed", messages=said)
    response = ai.responses.create(model="react/typed", input="How many?")

    assert json.loads(chat.choices[0].message.content) == json.loads(response.output_text) == {"people": 3}


@pytest.mark.parametrize("stream", [False, True])
def test_responses_have_text_approvals_and_a_conversation(ai: openai.OpenAI, worker: None, stream: bool) -> None:
    def respond(**body: Any) -> Any:
        if not stream:
            return ai.responses.create(**body)
        with ai.responses.stream(**body) as events:
            return events.get_final_response()

    said = respond(model=AGENT, input="6 * 7?")
    assert (said.output_text, said.status, said.usage.output_tokens) == ("It is 42.", "completed", 6)
    again = respond(model=AGENT, input=[*ASK], conversation=said.conversation.id)
    assert again.conversation == said.conversation

    first = respond(model="react/payer", input="pay")
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["arguments"] for call in calls] == [{"amount": 5}, {"amount": 6}]
    answers = [{"type": "function_call_output", "call_id": call.call_id, "output": "approve"} for call in calls]
    done = respond(model="react/payer", input=answers, conversation=first.conversation.id)
    assert (done.output_text, sorted(PAID)) == ("done", [5, 6])

    with pytest.raises(openai.BadRequestError, match=r"instructions is not possible: .*CLIENT_INSTRUCTIONS") as caught:
        ai.responses.create(model=AGENT, input="x", instructions="Be brief.")
    assert caught.value.body["param"] == "instructions"
    found = ai.responses.create(model="react/broken", input="x", stream=stream)
    broken = list(found)[-1].response if stream else found
    assert (broken.status, broken.error.code) == ("failed", "run_failed")


def test_errors_have_openais_form(ai: openai.OpenAI, worker: None, strange_client: Any, run: Run) -> None:
    def fails(kind: Any, param: str | None, **body: Any) -> None:
        with pytest.raises(kind) as caught:
            ai.chat.completions.create(**{"model": AGENT, "messages": ASK, **body})
        assert (caught.value.body["param"], caught.value.type) == (param, "invalid_request_error"), body

    fails(openai.BadRequestError, "n", n=2)
    fails(openai.BadRequestError, "tools", tools=[{"type": "function", "function": {"name": "f"}}])
    fails(openai.BadRequestError, "messages.0.role", messages=[{"role": "system", "content": "x"}, *ASK])
    fails(openai.BadRequestError, "messages", messages=[*ASK, {"role": "assistant", "content": "x"}])
    fails(openai.BadRequestError, "messages", messages=[{"role": "tool", "tool_call_id": "x", "content": "x"}])
    fails(openai.NotFoundError, "model", model="react/nobody")
    fails(openai.BadRequestError, "metadata.session", metadata={"session": "a\nb"})
    with pytest.raises(openai.AuthenticationError):
        ai.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError, match="nothing at"):
        ai.embeddings.create(model="x", input="x")
    assert Run.objects.count() == 1

    with pytest.raises(openai.UnprocessableEntityError, match="no such model"):
        ai.chat.completions.create(model="react/broken", messages=ASK)
    with pytest.raises(openai.APIError, match="no such model"):
        list(ai.chat.completions.create(model="react/broken", messages=ASK, stream=True))


def test_a_call_waits_no_longer_than_the_limit(ai: openai.OpenAI, settings: Any, monkeypatch: Any) -> None:
    world.silence(monkeypatch, "dispatch_send")
    world.patch(monkeypatch, "EXCHANGE_WAIT_S", 0.2)

    with pytest.raises(openai.UnprocessableEntityError) as caught:
        ai.chat.completions.create(model=AGENT, messages=ASK)

    run = Run.objects.get()  # the client has not repeated the call
    error = caught.value.body
    assert (error["code"], error["run"], run.status) == ("run_not_finished", str(run.id), "pending")


def test_under_wsgi_a_call_waits_for_25_s(client: Any, monkeypatch: Any) -> None:
    world.silence(monkeypatch, "dispatch_send")
    assert sse.WSGI_S == 25
    monkeypatch.setattr(sse, "WSGI_S", 0.1)

    assert client.post("/ravi/v1/chat/completions", {"model": AGENT, "messages": ASK}, format="json").status_code == 422


def test_under_wsgi_a_call_does_not_wait_for_other_people(
    client: Any, staff: Any, worker: None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sse, "WSGI_S", 1000)

    answer = client.post("/ravi/v1/chat/completions", {"model": "react/careful", "messages": ASK}, format="json")

    assert (answer.status_code, Run.objects.get().status) == (422, "suspended")


def test_waiting_calls_leave_half_of_the_threads_of_a_wsgi_server(
    user: Any, stranger: Any, django_user_model: Any, monkeypatch: Any
) -> None:
    is_over, known = threading.Event(), threading.Barrier(6)

    async def held(*_: Any) -> Any:
        await asyncio.to_thread(is_over.wait)
        yield Ended("cancelled", {}, (0, 0, 0, 0))

    def wait_as(one: Any) -> int:
        known.wait()
        client_of(one).get("/ravi/v1/models")
        known.wait()
        try:
            body = {"model": AGENT, "messages": ASK}
            return client_of(one).post("/ravi/v1/chat/completions", body, format="json").status_code
        finally:
            connections.close_all()

    world.silence(monkeypatch, "dispatch_send")
    monkeypatch.setattr(exchange, "pieces", held)
    others = [django_user_model.objects.create_user(f"u{number}") for number in range(6)]
    for users in ([user] * 5 + [stranger], others):  # a user has two
        is_over.clear()
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(wait_as, one) for one in users]
            try:
                assert wait_until(lambda: sum(call.done() for call in calls) == 3, BOUND_S)
            finally:
                is_over.set()
            statuses = sorted(call.result() for call in calls)  # before the pool ends its threads
        assert statuses == [422] * 3 + [429] * 3


def test_no_client_submits_again_after_an_error_of_the_server(ai: openai.OpenAI, monkeypatch: Any) -> None:
    def away(*_: Any) -> Any:
        raise redis.ConnectionError

    world.silence(monkeypatch, "dispatch_send")
    monkeypatch.setattr(exchange, "pieces", away)

    with pytest.raises(openai.InternalServerError) as caught:
        ai.chat.completions.create(model=AGENT, messages=ASK)

    assert (caught.value.status_code, caught.value.body["run"]) == (503, str(Run.objects.get().id))
    with pytest.raises(openai.APIError, match="internal error") as broken:
        list(ai.chat.completions.create(model=AGENT, messages=ASK, stream=True))
    assert broken.value.body["run"] == str(Run.objects.latest("created_at").id)


def test_a_call_with_the_same_key_follows_the_first_run(ai: openai.OpenAI, worker: None) -> None:
    def said(messages: Any) -> tuple[str, str | None]:
        found = ai.chat.completions.create(model=AGENT, messages=messages, extra_headers={"Idempotency-Key": "k"})
        return found.id, found.choices[0].message.content

    assert said(ASK) == said(ASK) == (str(Run.objects.get().id), "It is 42.")
    with pytest.raises(openai.ConflictError):
        said([{"role": "user", "content": "Other words."}])


def test_a_client_reconnects_in_mid_stream_by_its_key(ai: openai.OpenAI, worker: None) -> None:
    more: Any = {"model": AGENT, "stream": True, "extra_headers": {"Idempotency-Key": "k"}}
    with ai.chat.completions.create(messages=ASK, **more) as cut:
        first = next(iter(cut)).id

    chunks = list(ai.chat.completions.create(messages=ASK, **more))

    assert {chunk.id for chunk in chunks} == {first} == {str(Run.objects.get().id)}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It is 42."


def test_parts_name_uploaded_files(ai: openai.OpenAI, worker: None, client: Any, settings: Any, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = tmp_path
    given = {"a.png": b"\x89PNG\r\n\x1a\n...", "a.pdf": b"%PDF-1.7 ..."}
    image, paper = (
        client.post("/ravi/files/", {"file": ContentFile(content, name)}, format="multipart").json()["id"]
        for name, content in given.items()
    )
    text = {"type": "text", "text": "Look"}
    chat = [text, *({"type": "file", "file": {"file_id": one}} for one in (image, paper))]
    response = [{"type": "input_text", "text": "Look"}, {"type": "input_image", "file_id": image, "detail": "auto"}]
    response.append({"type": "input_file", "file_id": paper})

    ai.chat.completions.create(model=AGENT, messages=[{"role": "user", "content": chat}])
    ai.responses.create(model=AGENT, input=[{"role": "user", "content": response}])
    data, sound = "data:application/pdf;base64,JVBERi0=", {"type": "input_audio"}
    inline = [{"type": "file", "file": {"file_data": data, "filename": "a.pdf"}}]
    inline.append({**sound, "input_audio": {"data": "SUQz", "format": "mp3"}})
    old = [{"role": "user", "content": [{"type": "refused"}]}, {"role": "assistant", "content": "Yes?"}]
    ai.chat.completions.create(model=AGENT, messages=[*old, {"role": "user", "content": inline}])
    inline[0] = {"type": "input_file", "file_data": "JVBERi0=", "filename": "a.pdf"}
    ai.responses.create(model=AGENT, input=[{"role": "user", "content": inline}])
    unknown: Any = [{"type": "file", "file": {"file_id": "file-123"}}]
    with pytest.raises(openai.BadRequestError, match="there is no file 'file-123' of yours"):
        ai.chat.completions.create(model=AGENT, messages=[{"role": "user", "content": unknown}])

    said = [turn.content for turn in Turn.objects.filter(role="user").order_by("created_at")]
    assert [[(block["type"], block.get("file")) for block in blocks] for blocks in said[:2]] == [
        [("text", None), ("image", image), ("document", paper)]
    ] * 2
    document = {"type": "document", "data": "JVBERi0=", "mime_type": "application/pdf", "name": "a.pdf"}
    audio = {"type": "audio", "data": "SUQz", "mime_type": "audio/mpeg"}
    assert said[2:] == [[document, audio]] * 2


def test_of_the_wsgi_servers_only_runserver_streams(client: Any, worker: None) -> None:
    body = {"model": AGENT, "messages": ASK, "stream": True}
    url = "/ravi/v1/chat/completions"

    refused = client.post(url, body, format="json")
    assert (refused.status_code, refused.json()["error"]["type"]) == (406, "invalid_request_error")
    assert not Run.objects.exists()

    text = client.post(url, body, format="json", **RUNSERVER).getvalue().decode()
    assert '"finish_reason":"stop"' in text and text.endswith("data: [DONE]\n\n")


@pytest.mark.full
def test_litellm_uses_an_agent_as_a_model(server: str, key: str, worker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import fetches a price list
    import litellm

    where = {"model": f"openai/{AGENT}", "api_base": f"{server}/ravi/v1", "api_key": key}

    whole = litellm.completion(**where, messages=ASK)
    chunks = list(litellm.completion(**where, messages=ASK, stream=True))

    assert whole.choices[0].message.content == "It is 42."
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It is 42."


def test_others_sessions_and_requests_stay_theirs(ai: openai.OpenAI, stranger: Any, worker: None) -> None:
    asked = ai.chat.completions.create(model="react/payer", messages=ASK)
    call = asked.choices[0].message.tool_calls[0].id
    answer = [{"role": "tool", "tool_call_id": call, "content": "approve"}]
    other = ai.with_options(api_key=Token.objects.create(user=stranger).key)

    for metadata, error in ((session_of(asked), openai.NotFoundError), ({}, openai.BadRequestError)):
        with pytest.raises(error):
            other.chat.completions.create(model="react/payer", messages=answer, metadata=metadata)
    assert HumanRequest.objects.filter(status="pending").count() == 2


def test_a_client_names_its_conversation(ai: openai.OpenAI, worker: None) -> None:
    for _ in range(2):
        ai.chat.completions.create(model=AGENT, messages=ASK, metadata={"session": "case 7"})
    ai.responses.create(model=AGENT, input="Again?", conversation="case 7")

    assert (Session.objects.get().name, Run.objects.count()) == ("case 7", 3)


@pytest.mark.parametrize("is_moved", [False, True])
def test_requests_to_others_are_waited_for(ai, worker, staff, settings, monkeypatch, is_moved) -> None:
    assert pieces.LOOK_S == 5
    monkeypatch.setattr(pieces, "LOOK_S", 0.1)
    settings.RAVI = {**settings.RAVI, "FOUR_EYES": False}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ai.chat.completions.create, model="react/careful", messages=ASK)
        assert wait_until(lambda: HumanRequest.objects.filter(status="pending").exists(), BOUND_S)
        session = {"session": str(Session.objects.get().id)}
        ai.chat.completions.create(model="react/careful", messages=ASK, metadata=session, stream=True).close()
        for request in HumanRequest.objects.all():
            people.reassign(request, "owner") if is_moved else people.answer(request, "approve")
        answer = waiting.result(BOUND_S)

    assert (answer.choices[0].finish_reason, PAID) == (("tool_calls", []) if is_moved else ("stop", [7]))


def test_the_page_of_the_docs_holds(
    server: str, key: str, worker: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Page("clients").code("ask.py").replace("http://127.0.0.1:8000", server).replace("react/assistant", AGENT)

    monkeypatch.setenv("RAVI_TOKEN", key)
    exec(code, {})

    assert capsys.readouterr().out == "It is 42.\nIt is 42."
    assert Session.objects.get().runs.count() == 2
