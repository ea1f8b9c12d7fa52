"""Calls that may hang, each on a daemon thread of its own: given up, they hold up nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support import world
from tests.support.runs import BOUND_S, until
from tests.support.world import Hangs, on_own_thread


@pytest.fixture
def go() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def called(key, function, within_s=BOUND_S):
    async def main():
        async with asyncio.timeout(within_s + 5):
            return await on_own_thread(key, function, within_s)

    return asyncio.run(main())


def test_it_gives_back_what_the_function_returns_or_raises():
    def away():
        raise TimeoutError(110, "Connection timed out")

    assert called("a", lambda: threading.current_thread().daemon) is True
    with pytest.raises(TimeoutError, match="Connection timed out"):
        called("a", away)
    assert called("a", lambda: "again") == "again"


def test_one_that_hangs_is_given_up_and_costs_one_thread(go):
    begun = []

    def hang():
        begun.append(threading.current_thread())
        go.wait()

    with pytest.raises(Hangs, match="no answer within"):
        called("a", hang, 0.05)
    with pytest.raises(Hangs, match="hangs in it still"):
        called("a", hang)
    assert called("b", lambda: "another's") == "another's"

    go.set()
    until(lambda: not begun[0].is_alive())
    assert (called("a", lambda: "again"), len(begun)) == ("again", 1)


def test_where_no_thread_can_be_had_the_next_call_is_tried(monkeypatch):
    def refuses(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        with pytest.raises(RuntimeError, match="new thread"):
            called("a", lambda: None)

    assert called("a", lambda: "again") == "again"


def test_a_forked_process_has_none_of_the_threads(go):
    with pytest.raises(Hangs):
        called("a", go.wait, 0.05)

    world.own_thread_after_fork()

    assert called("a", lambda: "its own") == "its own"


def test_a_process_ends_though_a_call_hangs():
    script = (
        "import asyncio, threading\n"
        "from tests.support.world import Hangs, on_own_thread\n"
        "try:\n"
        "    asyncio.run(on_own_thread('a', threading.Event().wait, 0.05))\n"
        "except Hangs:\n"
        "    print('given up')\n"
    )

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=BOUND_S, check=True)

    assert ended.stdout == "given up\n"
