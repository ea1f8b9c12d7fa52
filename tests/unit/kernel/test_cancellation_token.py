import asyncio
import threading

import pytest

from ravi_django.kernel import CancellationError, CancellationToken

BOUND_S = 5.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_fresh_token_lets_pass() -> None:
    token = CancellationToken()

    token.check()

    assert not token.cancelled
    assert token.reason is None


def test_check_raises_the_first_reason() -> None:
    token = CancellationToken()
    token.cancel("closed by ada")
    token.cancel("too late")

    with pytest.raises(CancellationError) as caught:
        token.check()

    assert caught.value.reason == "closed by ada"


def test_children_and_grandchildren_are_cancelled_with_it() -> None:
    token = CancellationToken()
    child = token.child()
    grandchild = child.child()

    token.cancel("stop")

    assert (child.reason, grandchild.reason) == ("stop", "stop")


def test_cancelling_a_child_leaves_its_parent_and_siblings() -> None:
    token = CancellationToken()
    child, sibling = token.child(), token.child()

    child.cancel()

    assert not token.cancelled
    assert not sibling.cancelled


def test_child_of_a_cancelled_token_is_born_cancelled() -> None:
    token = CancellationToken()
    token.cancel("stop")

    assert token.child().reason == "stop"


def test_passed_deadline_reads_as_cancelled() -> None:
    clock = Clock()
    token = CancellationToken(deadline=110.0, clock=clock)
    token.check()

    clock.now = 110.0

    with pytest.raises(CancellationError, match="deadline"):
        token.check()


@pytest.mark.parametrize(("own", "expected"), [(105.0, 105.0), (120.0, 110.0), (None, 110.0)])
def test_child_has_the_earlier_deadline(own: float | None, expected: float) -> None:
    token = CancellationToken(deadline=110.0, clock=Clock())

    assert token.child(deadline=own).deadline == expected


def test_child_s_own_deadline_does_not_cancel_the_parent() -> None:
    clock = Clock()
    token = CancellationToken(clock=clock)
    child = token.child(deadline=105.0)

    clock.now = 106.0

    assert child.cancelled
    assert not token.cancelled


def test_parents_deadline_reaches_a_child() -> None:
    clock = Clock()
    child = CancellationToken(deadline=110.0, clock=clock).child()

    clock.now = 111.0

    assert child.cancelled


@pytest.mark.asyncio
async def test_wait_returns_at_once_when_cancelled() -> None:
    token = CancellationToken()
    token.cancel()

    await asyncio.wait_for(token.wait(), BOUND_S)


@pytest.mark.asyncio
async def test_wait_is_woken_from_another_thread() -> None:
    token = CancellationToken()
    waiter = asyncio.create_task(token.wait())
    await asyncio.sleep(0)  # let it begin to wait
    assert not waiter.done()

    thread = threading.Thread(target=token.cancel, args=("from outside",))
    thread.start()
    await asyncio.wait_for(waiter, BOUND_S)
    thread.join()

    assert token.reason == "from outside"


@pytest.mark.asyncio
async def test_cancelling_the_parent_wakes_who_waits_for_a_child() -> None:
    token = CancellationToken()
    child = token.child()
    waiters = [asyncio.create_task(child.wait()) for _ in range(3)]
    await asyncio.sleep(0)

    token.cancel("stop")

    await asyncio.wait_for(asyncio.gather(*waiters), BOUND_S)
    assert child.reason == "stop"


@pytest.mark.asyncio
async def test_wait_ends_at_the_deadline() -> None:
    clock = Clock()
    token = CancellationToken(deadline=100.01, clock=clock)
    waiter = asyncio.create_task(token.wait())
    await asyncio.sleep(0)

    clock.now = 100.02
    await asyncio.wait_for(waiter, BOUND_S)

    assert token.reason == "deadline passed"


@pytest.mark.asyncio
async def test_an_abandoned_wait_leaves_nothing_behind() -> None:
    token = CancellationToken()
    waiter = asyncio.create_task(token.wait())
    await asyncio.sleep(0)

    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter

    assert token._waiters == []
    token.cancel()
