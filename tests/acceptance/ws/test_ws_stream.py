"""Run sockets on a real server: what is streamed, in which order, and what a reconnect brings."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from project.process import wait_until
from ravi_django.models import Run
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


def test_a_client_that_does_not_read_holds_the_reading_up(server, submitted, demo, ticket, monkeypatch) -> None:
    """40 MB are waiting; what a socket takes on is bounded by a page and the kernel's buffers."""
    run = submitted(send=lambda run_id: None)
    source = Source.of(run)
    for _ in range(20):
        frames = [Frame(source, "text.delta", {"text": "x" * 20_000}) for _ in range(100)]
        get_buffer().append([Batch(str(run.id), frames, mark=10**6, fresh=True)])
    pages = []
    real = world.events_page
    world.patch(monkeypatch, "events_page", lambda *args, **more: (pages.append(args), real(*args, **more))[1])
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    narrow.connect(("127.0.0.1", server.port))
    address = f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}"

    with server.connect(address, sock=narrow, max_queue=1, max_size=None, compression=None) as client:
        assert json.loads(client.recv(timeout=BOUND_S))["seq"] == 1
        stalled = not wait_until(lambda: len(pages) > 2, 1.5)
        rest = [json.loads(client.recv(timeout=BOUND_S))["seq"] for _ in range(1999)]

    assert stalled
    assert rest == list(range(2, 2001))
    assert wait_until(lambda: server.streams() == 0, BOUND_S)


def cut(client: ClientConnection) -> None:
    """As a machine that dies: no closing handshake, the connection is reset."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
