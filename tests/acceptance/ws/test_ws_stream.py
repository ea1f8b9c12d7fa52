"""Run sockets and event streams on a real server: what is streamed, in which order, and what a reconnect brings."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from itertools import islice
from typing import Any

import httpx
import pytest
from rest_framework.authtoken.models import Token
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from project.process import wait_until
from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.kernel import ModelEvent, ModelResponse, TextBlock, TextDelta
from ravi_django.models import Run
from ravi_django.services import open_streams
from tests.acceptance.ws.live_site import serving
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.world import Batch, Frame, Source, get_buffer

pytestmark = pytest.mark.django_db(transaction=True)


def read(client: ClientConnection, until: Callable[[dict[str, Any]], bool] = lambda frame: False) -> list[Any]:
    """The frames up to the first that `until` likes, or to the socket's end."""
    frames = []
    try:
        while not frames or not until(frames[-1]):
            frames.append(json.loads(client.recv(timeout=BOUND_S)))
    except ConnectionClosed:
        pass
    return frames


def has_text(frame: dict[str, Any]) -> bool:
    return frame["type"] == "text.delta"


def test_frames_come_live_and_end_with_1000(worker, server, paced, submitted, demo, ticket) -> None:
    run = submitted("react/paced")

    with server.connect(f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}") as client:
        paced.let()
        first = read(client, until=has_text)  # the rest is not said yet: this one came live
        paced.let_all()
        frames = first + read(client)

    assert Run.objects.get(id=run.id).status == "completed"
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert "".join(frame["text"] for frame in frames if has_text(frame)) == "".join(paced.words)
    assert [frame["type"] for frame in frames].count("stream.done") == 1
    assert frames[-1] | {"ts": ""} == {
        "seq": len(frames),
        "type": "stream.done",
        "run": str(run.id),
        "agent": "react/paced",
        "parent": None,
        "parent_agent": None,
        "depth": 0,
        "ts": "",
        "reason": "completed",
        "attempt": "1",
    }
    assert client.close_code == 1000


def test_a_client_that_was_cut_off_gets_exactly_what_it_missed(worker, server, paced, submitted, demo, ticket) -> None:
    run = submitted("react/paced")
    with server.connect(f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}") as client:
        paced.let()
        seen = read(client, until=has_text)
        cut(client)
    paced.let(4)
    assert wait_until(lambda: len(world.events_page(run.id)[0]) > len(seen), BOUND_S)

    address = f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}&after={seen[-1]['seq']}"
    with server.connect(address) as again:
        missed = read(again, until=has_text)
        paced.let_all()
        missed += read(again)

    assert seen + missed == world.events_page(run.id)[0]
    assert Run.objects.get(id=run.id).status == "completed"


def test_two_clients_and_a_late_one_see_the_same(worker, server, paced, submitted, demo, ticket) -> None:
    run = submitted("react/paced")

    def open_one() -> ClientConnection:
        return server.connect(f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}&after=0")

    with open_one() as one, open_one() as other:
        paced.let_all()
        frames = read(one)
        assert read(other) == frames
    with open_one() as late:
        assert read(late) == frames
    assert wait_until(lambda: Run.objects.get(id=run.id).published_at, BOUND_S)  # else the socket looks again in 5 s
    with server.connect(f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}&after={frames[-1]['seq']}") as after_all:
        assert read(after_all) == []
        assert after_all.close_code == 1000


def test_a_killed_client_leaves_nothing_behind_and_the_run_goes_on(
    worker, server, paced, submitted, demo, ticket
) -> None:
    run = submitted("react/paced")
    with server.connect(f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}") as client:
        paced.let()
        read(client, until=has_text)
        assert server.streams() == 1

        cut(client)

        assert wait_until(lambda: server.streams() == 0, BOUND_S)
    paced.let_all()
    assert wait_until(lambda: Run.objects.get(id=run.id).status == "completed", BOUND_S)


def fill(run: Run, frames: int) -> None:
    """Frames of 20 KB each."""
    source = Source.of(run)
    for number in range(0, frames, 100):
        calls = [f"call {number + place}" for place in range(100)]
        batch = [Frame(source, "text.delta", {"text": "x" * 20_000, "call": call}) for call in calls]
        get_buffer().append([Batch(str(run.id), batch, mark=10**6, fresh=True)])


def narrow_socket(server: Any) -> socket.socket:
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    narrow.connect(("127.0.0.1", server.port))
    return narrow


def test_a_client_that_does_not_read_holds_the_reading_up(server, submitted, demo, ticket, monkeypatch) -> None:
    """40 MB are waiting; what a socket takes on is bounded by a page and the kernel's buffers."""
    run = submitted(send=lambda run_id: None)
    fill(run, 2000)
    pages = []
    real = world.events_page
    world.patch(monkeypatch, "events_page", lambda *args, **more: (pages.append(args), real(*args, **more))[1])
    address = f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}"

    with server.connect(address, sock=narrow_socket(server), max_queue=1, max_size=None, compression=None) as client:
        assert json.loads(client.recv(timeout=BOUND_S))["seq"] == 1
        stalled = not wait_until(lambda: len(pages) > 2, 1.5)
        rest = [json.loads(client.recv(timeout=BOUND_S))["seq"] for _ in range(1999)]

    assert stalled
    assert rest == list(range(2, 2001))
    assert wait_until(lambda: server.streams() == 0, BOUND_S)


def by_socket(server: Any, run: Run, ticket: str, after: int = 0) -> Iterator[dict[str, Any]]:
    address = f"/ws/ravi/runs/{run.id}/?ticket={ticket}&after={after}"
    with server.connect(address, sock=narrow_socket(server), max_queue=1, max_size=None, compression=None) as client:
        try:
            while True:
                yield json.loads(client.recv(timeout=BOUND_S))
        except ConnectionClosed:
            assert client.close_code == 1013


def by_events(server: Any, run: Run, ticket: str, after: int = 0) -> Iterator[dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=BOUND_S)
    connection.sock = narrow_socket(server)
    connection.request("GET", f"/ravi/runs/{run.id}/events/?ticket={ticket}", headers={"Last-Event-ID": str(after)})
    with closing(connection):
        yield from frames_of(connection.getresponse())


def frames_of(lines: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The frames of an event stream."""
    for line in lines:
        name, _, data = (line.decode() if isinstance(line, bytes) else line).partition(": ")
        if name == "data":
            yield json.loads(data)


@pytest.mark.parametrize("reading", [by_socket, by_events])
def test_a_slow_client_is_cut_and_holds_up_no_other(
    server, submitted, demo, ticket, monkeypatch, caplog, reading
) -> None:
    monkeypatch.setattr(open_streams, "SLOW_S", 1.0)
    caplog.set_level("INFO", "ravi")
    run, count = submitted(send=lambda run_id: None), 2000
    fill(run, 100)
    slow = reading(server, run, ticket(demo))
    first = next(slow)
    fill(run, count - 100)

    everything = list(islice(by_socket(server, run, ticket(demo)), count))
    assert wait_until(lambda: "a slow client is cut" in caplog.text, BOUND_S)
    before = [first, *slow]
    after = list(islice(reading(server, run, ticket(demo), before[-1]["seq"]), count - len(before)))

    assert 1 < len(before) < count
    assert before + after == everything
    assert [frame["seq"] for frame in everything] == list(range(1, count + 1))


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/responses", "agui/react/thinker/"])
def test_a_slow_client_of_another_protocol_is_told_its_run(server, thinker, demo, monkeypatch, caplog, path) -> None:
    monkeypatch.setattr(open_streams, "SLOW_S", 1.0)
    world.silence(monkeypatch, "dispatch_send")
    caplog.set_level("INFO", "ravi")
    message = {"id": "m", "role": "user", "content": "Hello."}
    body = {"threadId": "", "runId": "r", "messages": [message]}
    if path.startswith("v1"):
        body = {"model": thinker, "stream": True, "input" if "responses" in path else "messages": [message]}
    headers = {"Authorization": f"Bearer {Token.objects.create(user=demo).key}", "Content-Type": "application/json"}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=BOUND_S)
    connection.sock = narrow_socket(server)
    connection.request("POST", f"/ravi/{path}", json.dumps(body), headers)
    with closing(connection):
        coming = frames_of(connection.getresponse())
        next(coming)
        run = Run.objects.get()
        fill(run, 1000)
        assert wait_until(lambda: "a slow client is cut" in caplog.text, BOUND_S)
        *_, last = coming

    error = last.get("error", last)
    assert "the client read too slowly" in error["message"] and f"run {run.id} goes on" in error["message"]
    assert (error["code"], error.get("metadata", error)["run"]) == ("slow_client", str(run.id))


UVICORN = (
    *("-m", "uvicorn", "project.asgi:application", "--port", "{port}", "--lifespan", "off"),
    *("--timeout-graceful-shutdown", "1"),
)


@pytest.mark.full
def test_a_web_process_that_stops_loses_no_frame(worker, paced, submitted, demo, ticket) -> None:
    run, kept = submitted("react/paced"), ticket(demo)

    def socket_at(site: str, after: int = 0) -> ClientConnection:
        address = f"{site.replace('http', 'ws')}/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}&after={after}"
        return connect(address, proxy=None)

    def events_at(site: str, after: int = 0) -> Any:
        address = f"{site}/ravi/runs/{run.id}/events/?ticket={kept}"
        return httpx.stream("GET", address, headers={"Last-Event-ID": str(after)}, timeout=BOUND_S, trust_env=False)

    with serving(*UVICORN) as (first, leaver), serving(*UVICORN) as (second, _):
        with socket_at(first) as client, events_at(first) as response:
            paced.let()
            seen = read(client, until=has_text)
            coming = frames_of(response.iter_lines())
            heard = [next(coming)]
            leaver.terminate()
            seen += read(client)
            with suppress(httpx.RemoteProtocolError):
                heard += coming
        assert (client.close_code, len(heard)) == (1012, len(seen))
        assert leaver.wait(BOUND_S) is not None
        paced.let_all()
        with socket_at(second, seen[-1]["seq"]) as client, events_at(second, heard[-1]["seq"]) as response:
            seen += read(client)
            heard += frames_of(response.iter_lines())

    assert client.close_code == 1000
    assert seen == heard == world.events_page(run.id)[0]
    assert "".join(frame["text"] for frame in seen if has_text(frame)) == "".join(paced.words)


def test_a_run_is_one_sequence_by_socket_events_pages_and_agui(worker, server, thinker, demo, ticket) -> None:
    headers = {"Authorization": f"Bearer {Token.objects.create(user=demo).key}"}
    said = {"threadId": "", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "6 * 7?"}]}
    body = {**said, "tools": [], "context": [], "state": None, "forwardedProps": None}
    with httpx.Client(base_url=f"{server.url}/ravi/", timeout=BOUND_S, trust_env=False) as web:
        answer = web.post(f"agui/{thinker}/", json=body, headers=headers)
        agui = [*frames_of(answer.text.splitlines())]
        path = f"runs/{agui[1]['snapshot']['run']}/"
        opened = f"?ticket={ticket(demo)}"
        pages: list[Any] = []
        while not pages or not pages[-1]["done"]:
            query = f"{opened}&limit=3&after={pages[-1]['next_after'] if pages else 0}"
            pages.append(web.get(f"{path}events/{query}", headers={"Accept": "application/json"}).json())
        heard = [*frames_of(web.get(f"{path}events/{opened}").text.splitlines())]
    with server.connect(f"/ws/ravi/{path}?ticket={ticket(demo)}") as client:
        seen = read(client)

    assert seen == heard == [frame for page in pages for frame in page["results"]]
    assert [frame["seq"] for frame in seen] == list(range(1, len(seen) + 1))
    assert [*in_agui(agui)] == [*in_frames(seen)]


def in_frames(frames: list[Any]) -> Iterator[tuple[str, str]]:
    for frame in frames:
        match frame:
            case {"type": "text.delta" | "reasoning.delta" as kind, "text": text}:
                yield kind.partition(".")[0], text
            case {"type": "completion", "content": content}:
                yield from (("call", block["call_id"]) for block in content if block["type"] == "tool_use")
            case {"type": "progress", "step": "tool_result", "content": content}:
                yield "result", content["text"]
            case {"type": "stream.done", "reason": reason}:
                yield "end", reason


def in_agui(events: list[Any]) -> Iterator[tuple[str, str]]:
    for event in events:
        match event:
            case {"type": "TEXT_MESSAGE_CONTENT", "delta": text}:
                yield "text", text
            case {"type": "REASONING_MESSAGE_CONTENT", "delta": text}:
                yield "reasoning", text
            case {"type": "TOOL_CALL_START", "toolCallId": call}:
                yield "call", call
            case {"type": "TOOL_CALL_RESULT", "content": text}:
                yield "result", text
            case {"type": "RUN_FINISHED"}:
                yield "end", "completed"


def cut(client: ClientConnection) -> None:
    """As a machine that dies: no closing handshake, the connection is reset."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


class TickingModel:
    """Says a word each 20 ms until it is stopped."""

    name = "ticking"

    def __init__(self) -> None:
        self.is_over = False

    async def stream(self, *args: Any) -> AsyncIterator[ModelEvent]:
        while not self.is_over:
            yield TextDelta(text="tick ")
            await asyncio.sleep(0.02)
        yield ModelResponse.of([TextBlock(text="tock")])


def test_an_agents_topic_is_live_on_a_socket_and_as_events(worker, server, demo, stranger, ticket) -> None:
    """Each of two users gets the text of their own run of one agent, without numbers."""
    model = TickingModel()
    address = str(register(ReActAgent("ticking", model=model), access="authenticated").id)
    runs = {user: str(world.submit_once(address, "hi", user=user)[0].id) for user in (demo, stranger)}
    headers = {"Authorization": f"Token {Token.objects.create(user=stranger).key}"}
    web = f"{server.url}/ravi/topics/agent.stream/ticking/events/"
    path = f"/ws/ravi/topics/agent.stream/ticking/?ticket={ticket(demo)}"
    with (
        server.connect(path) as client,
        httpx.stream("GET", web, headers=headers, timeout=BOUND_S, trust_env=False) as response,
    ):
        heard = list(islice(frames_of(response.iter_lines()), 3))
        seen = [json.loads(client.recv(timeout=BOUND_S)) for _ in range(3)]
        client.send(json.dumps({"type": "cancel"}))
        refused = read(client, until=lambda frame: frame["type"] == "error")[-1]
        model.is_over = True

    assert {frame["run"] for frame in heard} == {runs[stranger]}
    assert {frame["run"] for frame in seen} == {runs[demo]}
    assert not any("seq" in frame for frame in heard + seen)
    assert refused["field"] == "type"
