"""A provider's rate limit is a wait, not a failed attempt: the run calls again when the provider takes requests.

`model_limits.py` has what the providers take. A call waits in memory for its time, for up to MEMORY_S. For longer waits
the run suspends, and `permits.py` wakes it. A provider that has refused everything for RAVI["PROVIDER_WAIT_S"] fails
its calls with RateLimited.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError

from ravi_django.calls.model import model_limits, permits
from ravi_django.calls.model.model_limits import Limit
from ravi_django.conf import conf
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.lease import backoff, paths, stopwatch
from ravi_django.engine.lease.lease_state import PROVIDER, Wait
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import AgentStep, ChatMessage, ChatModel, LeaseLostError, ModelError, TransientError

log = logging.getLogger("ravi.models")

T = TypeVar("T")

MEMORY_S = 15.0  # that a call waits with its lease, at most
LOOK_S = 0.1  # between two checks whether a waiting call has to end
LEAST_S = 1.0  # that a run waits without a turn, before it asks again
SHOW_S = 1.0  # shorter waits are not shown


def is_limit(error: Exception) -> bool:
    """Whether the provider takes no request at present: 429, or 529 of a provider that is overloaded."""
    return isinstance(error, TransientError) and (error.status in (429, 529) or error.type == "RateLimitError")


def limit_of(recorder: Recorder, model: ChatModel) -> Limit:
    return model_limits.of(model, recorder.lease.run.tenant)


def estimate(recorder: Recorder, model: ChatModel, messages: Sequence[ChatMessage]) -> float:
    """Tokens of a call: a quarter of its bytes, corrected by what earlier calls have used."""
    return sum([message.size for message in messages]) / 4 * limit_of(recorder, model).ratio


def choose(recorder: Recorder, model: ChatModel) -> ChatModel:
    """The model itself; of a fallback list the first one that takes a call within `fallback_after`, else the one that
    takes it first."""
    after, present = getattr(model, "fallback_after", None), recorder.state.present()
    if after is None:
        return model
    members = [*_members(model)]
    woken_by, permits = recorder.state.wake_state.permits
    if permits and (woken := [one for one in members if limit_of(recorder, one).row_id == woken_by]):
        return woken[0]
    limits = [(limit_of(recorder, one), one) for one in members]
    expected = [
        (math.inf if limit.refuses_too_long(present) else limit.expected_s(present), one) for limit, one in limits
    ]
    soon = (one for seconds, one in expected if seconds <= after)
    return next(soon, None) or min(expected, key=lambda pair: pair[0])[1]


def _members(model: Any) -> Iterator[ChatModel]:
    for one in getattr(model, "models", ()):
        yield from _members(one) if hasattr(one, "models") else (one,)


@dataclass(frozen=True, slots=True)
class Turn:
    """The end of a call's wait."""

    error: ModelError | None = None
    is_open: bool = False  # counted among the requests at once
    has_permit: bool = False
    waited_s: float = 0.0


@asynccontextmanager
async def permitted(
    recorder: Recorder, model: ChatModel, path: str, tokens: float, deadline: datetime | None
) -> AsyncIterator[Turn]:
    """Enter when the model may be called with so many tokens, and stay inside for the request. Or enter at once with an
    error: the run's deadline comes first, or the provider has refused everything for too long."""
    limit = limit_of(recorder, model)
    turn = await _wait(recorder, limit, model, path, tokens, deadline)
    try:
        yield turn
    finally:
        limit.open -= turn.is_open
        limit.permitted -= turn.has_permit
        if turn.has_permit and limit.most("at_once"):
            await asyncio.shield(_give_back(recorder))


async def _give_back(recorder: Recorder) -> None:
    with suppress(LeaseLostError):  # then the end of the lease gives it back
        await _in_database(recorder, permits.give_back, recorder.lease)


async def _wait(
    recorder: Recorder, limit: Limit, model: ChatModel, path: str, tokens: float, deadline: datetime | None
) -> Turn:
    state = recorder.state
    since, has_waited = state.present(), False
    while state.stop is None:
        present = state.present()
        if limit.refuses_too_long(present):
            return Turn(_refused(model, f"has refused all requests for {conf.PROVIDER_WAIT_S:g} s"))
        if state.wake_state.take_permit(limit.row_id):
            limit.begin(tokens, has_permit=True)
            waits = [row.finished_at for row in state.journal.recorded("run.suspended")]
            return Turn(None, True, True, (present - max(waits, default=present)).total_seconds())
        if limit.is_idle(present):
            limit.begin(tokens)
            return Turn(None, True, False, (present - since).total_seconds())
        expected = limit.expected_s(present)
        if deadline is not None and present + timedelta(seconds=expected) >= deadline:
            return Turn(_refused(model, f"takes requests again in {expected:.0f} s, after the run's deadline"))
        # A run that other calls keep at work has no place in the queue: its second try takes its turn.
        within_s = MEMORY_S if state.may_suspend(path) and not has_waited else math.inf
        if expected <= within_s:
            await _sleep(recorder, model, present, within_s, lambda: limit.room >= 1)
        if state.stop is not None:
            break
        if await _has_turn(recorder, limit, model, tokens, within_s if limit.room >= 1 else -1.0):
            limit.begin(tokens)
            return Turn(None, True, False, (state.present() - since).total_seconds())
        if within_s < math.inf and limit.row is not None and not limit.is_idle(state.present()):
            until = present + timedelta(seconds=max(LEAST_S, expected, limit.expected_s(present)))
            limit.row.waiting += 1  # as far as this process knows, see `settle.suspend`
            has_waited = True
            waiting = Wait(PROVIDER, model.name, partial(_is_over, recorder, until), until, limit.row_id)
            await recorder.waits.wait(waiting, path)
    return Turn()


async def _has_turn(recorder: Recorder, limit: Limit, model: ChatModel, tokens: float, within_s: float) -> bool:
    """Wait for the next time that the limit gives; False if it comes too late, or after a new pause."""
    state = recorder.state
    with limit.counts_as_open():
        async with recorder.effect():  # an error of the database ends the lease
            slot = await _in_database(recorder, model_limits.take, limit, tokens, state.present(), within_s)
        if slot is None:
            return False
        await _sleep(recorder, model, slot, (slot - state.present()).total_seconds(), lambda: False)
    return state.stop is None and not model_limits.is_after(limit.paused_until, state.present())


async def _in_database(recorder: Recorder, function: Callable[..., T], *args: Any) -> T:
    """Raises LeaseLostError if the database refuses: another lease repeats the call."""
    try:
        with recorder.waits.busy(), paths.entered(None):
            return await recorder.database.call(function, *args)
    except DatabaseError as error:
        log.exception("run %s: the limit of a model", recorder.lease.run_id, extra={"action": "limit.failed"})
        raise LeaseLostError(recorder.lease.run_id, recorder.lease.epoch) from error


def _is_over(recorder: Recorder, until: datetime) -> bool | None:
    """For a run that other calls keep at work: it asks again. A suspended run is woken with a permit."""
    return True if recorder.state.present() >= until else None


async def _sleep(
    recorder: Recorder, model: ChatModel, until: datetime, seconds: float, is_over: Callable[[], bool]
) -> None:
    ends, is_shown = time.monotonic() + seconds, False
    while recorder.state.stop is None and not is_over() and (left := ends - time.monotonic()) > 0:
        recorder.state.token.check()
        if not is_shown and left > SHOW_S:
            waiting = Wait(PROVIDER, model.name, lambda: None, until)
            recorder.stream.progress(AgentStep.THINKING, {"model": model.name, "waiting_on": [waiting.as_json()]})
            is_shown = True
        with recorder.waits.busy(), stopwatch.waiting():
            await asyncio.sleep(min(left, LOOK_S))


async def refused(
    recorder: Recorder, model: ChatModel, error: TransientError | ModelError, sent_at: datetime
) -> TransientError | ModelError | None:
    """None: a limit has refused the call, which is written down. Else the call's error: it is no limit, or the model's
    policy does not repeat it. `sent_at`: the time of the request."""
    policy = backoff.policy_of(model)
    if not isinstance(error, TransientError) or not is_limit(error) or not policy.retries(error):
        return error
    if not hasattr(model, "models"):  # a fallback list notes the refusals of its models
        await note(recorder, model, error, sent_at)
    limit = limit_of(recorder, choose(recorder, model))
    if limit.refuses_too_long(recorder.state.present()):
        return _refused(model, f"has refused all requests for {conf.PROVIDER_WAIT_S:g} s: {error}")
    return None


async def failed(recorder: Recorder, sent_at: datetime, model: ChatModel, error: TransientError | ModelError) -> None:
    """A model of a fallback list has failed."""
    if isinstance(error, TransientError) and is_limit(error):
        await note(recorder, model, error, sent_at)


async def note(recorder: Recorder, model: ChatModel, error: TransientError, sent_at: datetime) -> None:
    """Write down that the provider has refused a request."""
    pause_s = min(error.retry_after or 0.0, backoff.policy_of(model).max_retry_after_s)
    pause_s *= (jitter := random.uniform(1.0, 1.25))  # noqa: S311 - so that not all call at once
    limit, present = limit_of(recorder, model), recorder.state.present()
    taken = limit.taken_without_refused()
    await _in_database(recorder, model_limits.refuse, limit, present, sent_at, pause_s, jitter, taken)


async def answered(recorder: Recorder, model: ChatModel, row: Entry, estimated: float) -> None:
    """The provider has answered the call, as its row says."""
    if moved := row.request.get("fell_back"):
        model = next((one for one in _members(model) if one.name == moved[-1]["to"]), model)
    limit, present = limit_of(recorder, model), recorder.state.present()
    if row.usage is not None and not moved:
        limit.used(estimated, row.usage.total)
    if model_limits.wants_answer(limit, present):
        try:
            await _in_database(recorder, model_limits.answered, limit, present)
        except LeaseLostError:  # the answer is recorded
            log.warning("an answer of %s did not raise its limit", model.name, extra={"action": "limit.failed"})


def _refused(model: ChatModel, why: str) -> ModelError:
    return ModelError(f"the provider of {model.name} {why}", type="RateLimited", status=429)
