"""GET runs/{id}/events/: as server-sent events through a real server, and as JSON a page at a time."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from django.db import connection
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from project.process import wait_until
from ravi_django import register
from ravi_django.api import sse
from ravi_django.kernel import AgentProgress, AgentStep, Message, ProgressPayload, RunHandle
from ravi_django.models import InboxMessage, Run, Session, uuid7
from ravi_django.testing import run_until_idle, warm
from tests.acceptance.api.api_support import AGENT, RUNSERVER, drive, error_of
from tests.acceptance.ws.live_site import serving
from tests.support import world
from tests.support.patience import BOUND_S, seconds
from tests.support.runs import CodeAgent
from tests.support.world import DatabaseThreads, submit

pytestmark = pytest.mark.django_db(transaction=True)
JSON = {"Accept": "application/json"}


@pytest.fixture
def run(user: Any, agent: str) -> Run:
    return submit(agent, "6 * 7?", user=user)


@pytest.fixture
def done(run: Run) -> Run:
    drive(str(run.id))
    assert wait_until(lambda: world.events_page(run.id)[1], BOUND_S)
    return run


def address(run: Run, query: str = "") -> str:
    return f"/ravi/runs/{run.id}/events/{query}"


def parsed(text: str) -> list[dict[str, Any]]:
    """The frames of an event stream, when each event is exactly id, event and one line of data."""
    found = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith((":", "retry:")):
            continue
        (i, seq), (e, kind), (d, data) = (line.split(": ", 1) for line in block.split("\n"))
        frame = json.loads(data)
        assert (i, e, d) == ("id", "event", "data")
        assert (int(seq), kind) == (frame.get("end", frame["seq"]), frame["type"])
        found.append(frame)
    return found


# --------------------------------------------------------------------------------------------------- JSON


def test_a_page_of_frames_says_where_the_next_begins(client: APIClient, done: Run) -> None:
    everything = client.get(address(done), headers=JSON).json()
    assert set(everything) == {"results", "next_after", "done"}
    assert everything["done"] is True
    assert everything["results"][-1]["type"] == "stream.done"

    seen: list[Any] = []
    after, ended = 0, False
    while not ended:
        page = client.get(address(done, f"?after={after}&limit=3"), headers=JSON).json()
        assert len(page["results"]) <= 3
        seen += page["results"]
        after, ended = page["next_after"], page["done"]

    assert seen == everything["results"]
    assert [frame["seq"] for frame in seen] == list(range(1, len(seen) + 1))
    published = Run.objects.filter(id=done.id, published_at__isnull=False)
    # The sweep publishes what was locked when it was to be archived.
    assert wait_until(lambda: published.exists() or world.republish(str(done.id)), BOUND_S)
    assert client.get(address(done, f"?after={after}"), headers=JSON).json() == {
        "results": [],
        "next_after": after,
        "done": True,
    }


def test_a_child_shows_the_events_of_its_tree(client: APIClient, user: Any, agent: str, done: Run) -> None:
    session = world.create_session(Session(owner=user))
    child = Run.objects.create(
        id=uuid7(), agent=agent, session=session, owner=user, parent=done, root=done, depth=1, status="completed"
    )

    assert client.get(address(child), headers=JSON).json() == client.get(address(done), headers=JSON).json()


def test_a_bad_after_is_refused(client: APIClient, run: Run) -> None:
    for after in ("-1", "x", "", "1.5", "1e3", "%2B1", "%201", "%D9%A3", "9" * 30, "0x1"):
        for accept in ("application/json", "text/event-stream", "*/*"):
            response = client.get(address(run, f"?after={after}"), headers={"Accept": accept})
            assert (response.status_code, error_of(response)["field"]) == (400, "after"), (after, accept)
    response = client.get(address(run), headers={"Last-Event-ID": "x"})
    assert (response.status_code, error_of(response)["field"]) == (400, "Last-Event-ID")


# ---------------------------------------------------------------------------------------- a WSGI server's stream


@pytest.mark.full
def test_a_stream_does_not_hold_gunicorns_only_worker(done: Run, user: Any) -> None:
    headers = {"Authorization": f"Token {Token.objects.create(user=user).key}"}
    sync_worker = ("-m", "gunicorn", "project.wsgi", "-w", "1", "-b", "127.0.0.1:{port}")
    with serving(*sync_worker) as (site, _), httpx.Client(base_url=site, headers=headers, trust_env=False) as web:
        for accept in ("text/event-stream", "*/*"):
            refused = web.get(address(done, "?after=2"), headers={"Accept": accept}, timeout=BOUND_S)
            assert refused.status_code == 406
            assert f"Accept: application/json for {address(done, '?after=2')}" in refused.json()["error"]["message"]
        page = web.get(address(done, "?after=2"), headers=JSON, timeout=BOUND_S).json()

    assert page["results"][0]["seq"] == 3 and page["done"]


def test_the_stream_is_the_default_and_has_its_headers(client: APIClient, done: Run) -> None:
    response = client.get(address(done), **RUNSERVER)

    assert response.status_code == 200
    assert response["Content-Type"] == "text/event-stream; charset=utf-8"
    assert (response["Cache-Control"], response["X-Accel-Buffering"]) == ("no-store", "no")
    frames = parsed(response.getvalue().decode())
    assert frames == client.get(address(done), headers=JSON).json()["results"]


def test_last_event_id_wins_over_after(client: APIClient, done: Run) -> None:
    def seqs(query: str = "", **headers: str) -> list[int]:
        body = client.get(address(done, query), headers=headers, **RUNSERVER).getvalue().decode()
        return [frame["seq"] for frame in parsed(body)]

    everything = seqs()

    assert seqs("?after=2") == everything[2:]
    assert seqs("?after=2", **{"Last-Event-ID": "4"}) == everything[4:]
    assert seqs("?after=2", **{"Last-Event-ID": ""}) == everything[2:]
    assert seqs(f"?after={everything[-1]}") == []


def test_an_event_source_comes_back_later_and_not_after_the_end(client: APIClient, user: Any, done: Run) -> None:
    def answer(run: Run, seq: int, query: str = "", **headers: str) -> Any:
        return client.get(address(run, query), headers={"Last-Event-ID": str(seq), **headers}, **RUNSERVER)

    starts = [client.get(address(done), **RUNSERVER).getvalue().decode() for _ in range(9)]
    pauses = [int(re.match(r"retry: ([0-9]+)\n\n", text)[1]) for text in starts]  # type: ignore[index]
    assert all(2000 <= pause <= 6000 for pause in pauses) and len(set(pauses)) > 1
    assert all(text.count("retry:") == 1 for text in starts)
    assert wait_until(lambda: Run.objects.get(id=done.id).published_at or world.republish(str(done.id)), BOUND_S)
    last = parsed(starts[0])[-1]["seq"]
    ended = answer(done, last)
    assert (ended.status_code, ended.content) == (204, b"") and "no-store" in ended["Cache-Control"]
    assert [frame["seq"] for frame in parsed(answer(done, last - 1).getvalue().decode())] == [last]
    assert answer(done, last, Accept="application/json").json()["done"]
    assert client.get(address(done, f"?after={last}"), **RUNSERVER).status_code == 200
    gap, end = client.get(address(done, f"?after={last + 5}"), headers=JSON).json()["results"]
    assert (gap["type"], gap["from"], gap["to"], gap["seq"]) == ("stream.gap", last + 1, last + 5, last + 6)
    assert (end["type"], end["seq"]) == ("stream.done", last + 7), "for a client that has what the buffer lost"
    for seq in (last + 1, last + 5, 10**17):
        text = answer(done, seq).getvalue().decode()
        types = [(one["type"], one["seq"]) for one in parsed(text)]
        assert types == [("stream.gap", seq + 1), ("stream.done", seq + 2)]
        assert re.findall(r"^id: ([0-9]+)$", text, re.M)[-1] == str(last), "an EventSource then gets the 204"
    waiting = answer(submit(AGENT, "hi", user=user), 5)
    assert waiting.status_code == 200
    waiting.close()


def test_under_runserver_a_stream_gives_its_thread_back(client, run, monkeypatch) -> None:
    monkeypatch.setattr(sse, "WSGI_POLL_S", 0.02)
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.1)
    body = client.get(address(run), **RUNSERVER).streaming_content

    assert [next(body).endswith(sse.OPENING), next(body)] == [True, sse.KEEP_ALIVE]
    monkeypatch.setattr(sse, "WSGI_S", 0)

    assert set(body) <= {sse.KEEP_ALIVE}


def test_head_has_no_body(client: APIClient, run: Run) -> None:
    response = client.head(address(run), **RUNSERVER)

    assert (response.status_code, response.content) == (200, b"")
    assert response["Content-Type"].startswith("text/event-stream")


# ---------------------------------------------------------------------------------------- a real ASGI server


@pytest.fixture
def web(server: str, user: Any) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Token {Token.objects.create(user=user).key}"}
    with httpx.Client(base_url=server, headers=headers, timeout=BOUND_S, trust_env=False) as found:
        yield found


def follow(web: httpx.Client, run: Run, started: threading.Event | None = None, **headers: str) -> list[dict[str, Any]]:
    with web.stream("GET", address(run), headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["X-Accel-Buffering"] == "no"
        text = ""
        for piece in response.iter_text():
            text += piece
            if started is not None:
                started.set()
    return parsed(text)


def test_frames_arrive_while_the_run_goes_on(web: httpx.Client, run: Run) -> None:
    started = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(follow, web, run, started)
        assert started.wait(seconds(10))  # connected before the run begins
        drive(str(run.id))
        frames = watching.result(BOUND_S)

    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[-1]["type"] == "stream.done"
    assert "".join(frame["text"] for frame in frames if frame["type"] == "text.delta") == "It is 42."


def test_a_client_that_comes_back_gets_what_it_missed(web: httpx.Client, done: Run) -> None:
    everything = follow(web, done)

    assert follow(web, done, **{"Last-Event-ID": "3"}) == everything[3:]


def test_a_silent_stream_is_kept_alive(web: httpx.Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.1)

    with web.stream("GET", address(run)) as response:
        lines = (line for line in response.iter_lines() if line)
        assert next(lines).startswith("retry: ")
        assert [next(lines) for _ in range(4)] == [": open", *[": keep-alive"] * 3]


def connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_many_watchers_share_a_few_connections(web: httpx.Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    warm.close()  # connections of the drive that made the run
    calls: list[str] = []
    real = DatabaseThreads.call

    async def counted(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(function.__name__)
        return await real(self, function, *args, **kwargs)

    monkeypatch.setattr(DatabaseThreads, "call", counted)
    count = 30
    limits = httpx.Limits(max_connections=count)
    with (
        httpx.Client(
            base_url=web.base_url, headers=web.headers, timeout=BOUND_S, limits=limits, trust_env=False
        ) as many,
        ThreadPoolExecutor(count) as pool,
    ):
        started = [threading.Event() for _ in range(count)]
        watching = [pool.submit(follow, many, run, event) for event in started]
        assert all(event.wait(seconds(20)) for event in started)
        assert wait_until(lambda: calls.count("page") > count // 2, BOUND_S)  # some share a read
        assert wait_until(lambda: connections() <= 8, BOUND_S), f"{connections()} connections for {count} watchers"

        world.cancel(run.id, "enough")

        everybodys = [one.result(BOUND_S) for one in watching]
    assert all(frames == everybodys[0] for frames in everybodys)
    assert everybodys[0][-1]["type"] == "stream.done"


def test_a_client_that_goes_away_leaves_nothing_running(web, run, monkeypatch) -> None:
    waiting, ended = threading.Event(), threading.Event()

    async def endless(*args: Any, **more: Any) -> Any:
        try:
            waiting.set()
            await asyncio.Event().wait()
            yield
        finally:
            ended.set()

    monkeypatch.setattr(sse, "follow", endless)

    with web.stream("GET", address(run)) as response:
        lines = response.iter_lines()  # kept: letting go of it would close the connection
        next(lines)
        assert waiting.wait(seconds(10))
        assert not ended.is_set()

    assert ended.wait(seconds(10))


def test_a_fault_behind_it_ends_the_stream_and_is_logged(web, run, monkeypatch, caplog) -> None:
    async def broken(*args: Any, **more: Any) -> Any:
        raise ConnectionError("no buffer")
        yield

    monkeypatch.setattr(sse, "follow", broken)

    assert follow(web, run) == []
    assert "its event stream failed" in caplog.text


def test_progress_that_a_child_sends_to_its_parent_is_a_frame_and_no_message(user: Any, client: APIClient) -> None:
    async def report(ctx: Any, inbox: Any) -> None:
        parent = ctx.meta.supervision.parent_id
        for target in (parent, RunHandle(inbox[0].reply_to, parent)):
            progress = AgentProgress(step=AgentStep.THINKING, content={"to": type(target).__name__})
            await ctx.send(target, Message(target=parent, payload=ProgressPayload(progress=progress)))

    async def ask(ctx: Any, inbox: Any) -> None:
        await ctx.ask("test/reporter", "go")

    register(CodeAgent(report, key="reporter"))
    run = submit(register(CodeAgent(ask, key="asker")), "go", user=user)
    run_until_idle()
    assert wait_until(lambda: world.events_page(run.id)[1], BOUND_S)

    frames = client.get(address(run), headers=JSON).json()["results"]
    reported = [(one["agent"], one["depth"], one["content"]) for one in frames if one.get("step") == "thinking"]
    assert reported == [("test/reporter", 1, {"to": name}) for name in ("AgentId", "RunHandle")]
    assert (Run.objects.count(), InboxMessage.objects.count()) == (2, 2)


def test_one_agent_and_one_topic_of_a_tree(done: Run, client: APIClient, agent: str) -> None:
    def types(place: str, **query: Any) -> set[str]:
        body = client.get(f"/ravi/{place}/events/", query, headers=JSON).json()
        assert body["done"] and body["next_after"] == whole["next_after"], "the place goes on behind what is left out"
        return {frame["type"] for frame in body["results"]}

    whole = client.get(address(done), headers=JSON).json()
    own = {frame["type"] for frame in whole["results"]}
    run, key = f"runs/{done.id}", agent.partition("/")[2]
    assert types(run, agent=agent) == own and types(run, agent="react/other") == {"stream.done"}
    said = types(f"topics/agent.stream/{key}", run=done.id)
    assert {"completion", "stream.done"} <= said <= {"text.delta", "reasoning.delta", "completion", "stream.done"}
    assert types("topics/agent.stream/other", run=done.id) == {"stream.done"}
    assert types(f"topics/agent.progress/{done.id}") == {"progress", "stream.done"}

    streamed = client.get(f"/ravi/topics/agent.progress/{done.id}/events/", **RUNSERVER)
    assert {frame["type"] for frame in parsed(b"".join(streamed).decode())} == {"progress", "stream.done"}


def test_a_topic_is_of_a_run_of_ones_own(done: Run, client: APIClient, strange_client: APIClient) -> None:
    def refusal(place: str, by: APIClient = client, **query: Any) -> tuple[int, Any]:
        answer = by.get(f"/ravi/topics/{place}/events/", query, headers=JSON)
        return answer.status_code, error_of(answer).get("field")

    assert refusal("news/x", run=done.id) == (400, "topic")
    assert refusal("agent.stream/calc") == (400, "run")
    assert refusal("agent.progress/x") == (400, "topic")
    for place in (f"agent.progress/{done.id}", "agent.stream/calc"):
        assert refusal(place, strange_client, run=done.id)[0] == 404
