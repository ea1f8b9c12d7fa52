"""A provider's rate limit is a wait, not a failed attempt: the run calls again when the provider takes requests.

`model_limits.py` has what the providers take. A call waits in memory for its time, for up to MEMORY_S. For longer waits
the run suspends, and `permits.py` wakes it. A provider that has refused everything for RAVI["PROVIDER_WAIT_S"] fails
its calls with RateLimited.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from ravi_django.calls.model import model_limits
from ravi_django.calls.model.model_limits import Limit
from ravi_django.conf import conf
from ravi_django.engine.lease import backoff, paths, stopwatch
from ravi_django.engine.lease.lease_state import PROVIDER, Wait
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import AgentStep, ChatMessage, ChatModel, ModelError, TransientError

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
    expected = [(limit_of(recorder, one).expected_s(present), one) for one in _members(model)]
    soon = (one for seconds, one in expected if seconds <= after)
    return next(soon, None) or min(expected, key=lambda pair: pair[0])[1]


def _members(model: Any) -> Iterator[ChatModel]:
    for one in model.models:
        yield from _members(one) if hasattr(one, "models") else (one,)


@dataclass(frozen=True, slots=True)
class Turn:
    """The end of a call's wait."""

    error: ModelError | None = None
    is_open: bool = False  # counted among the requests at once
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


async def _wait(
    recorder: Recorder, limit: Limit, model: ChatModel, path: str, tokens: float, deadline: datetime | None
) -> Turn:
    state = recorder.state
    since = state.present()
    while state.stop is None:
        present = state.present()
        if state.wake_state.take_permit():
            limit.begin(tokens)
            waits = [row.finished_at for row in state.journal.recorded("run.suspended")]
            return Turn(None, True, (present - max(waits, default=present)).total_seconds())
        if limit.is_idle(present):
            limit.begin(tokens)
            return Turn(None, True, (present - since).total_seconds())
        expected = limit.expected_s(present)
        if limit.refuses_too_long(present):
            return Turn(_refused(model, f"has refused all requests for {conf.PROVIDER_WAIT_S:g} s"))
        if deadline is not None and present + timedelta(seconds=expected) >= deadline:
            return Turn(_refused(model, f"takes requests again in {expected:.0f} s, after the run's deadline"))
        within_s = MEMORY_S if state.may_suspend(path) else math.inf
        if expected <= within_s:
            await _sleep(recorder, model, present, within_s, lambda: limit.room >= 1)
        if limit.room < 1:
            within_s = -1.0
        limit.open += 1
        with recorder.waits.busy(), paths.entered(None):
            slot = await recorder.database.call(model_limits.take, limit, tokens, state.present(), within_s)
        limit.open -= 1
        if slot is None:
            until = present + timedelta(seconds=max(LEAST_S, expected, limit.expected_s(present)))
            waiting = Wait(PROVIDER, model.name, partial(_is_over, recorder, until), until, limit.row_id)
            await recorder.waits.wait(waiting, path)
            continue
        limit.open += 1
        await _sleep(recorder, model, slot, (slot - state.present()).total_seconds(), lambda: False)
        limit.open -= 1
        if state.stop is None and not model_limits.is_after(limit.paused_until, state.present()):
            limit.begin(tokens)
            return Turn(None, True, (state.present() - since).total_seconds())
    return Turn()


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
    jitter = random.uniform(1.0, 1.25)  # noqa: S311 - so that not all call at once
    limit, present = limit_of(recorder, model), recorder.state.present()
    with paths.entered(None):
        await recorder.database.call(model_limits.refuse, limit, present, sent_at, pause_s, jitter)


async def answered(recorder: Recorder, model: ChatModel, estimated: float, tokens: float) -> None:
    """The provider has answered, with so many tokens."""
    limit, present = limit_of(recorder, model), recorder.state.present()
    limit.used(estimated, tokens)
    if model_limits.wants_answer(limit, present):
        with paths.entered(None):
            await recorder.database.call(model_limits.answered, limit, present)


def _refused(model: ChatModel, why: str) -> ModelError:
    return ModelError(f"the provider of {model.name} {why}", type="RateLimited", status=429)
