"""A provider's rate limit is a wait, not a failed attempt: the run calls again when the provider takes requests.

Each process keeps the pauses of its providers by key: the model, its server and the account. A refused call closes its
key for the time that the provider asks for, else for 1 s, doubled with each further refusal up to a minute. A call that
finds its key closed waits in memory for up to MEMORY_S; for longer waits the run suspends. A key that has refused
everything for RAVI["PROVIDER_WAIT_S"] fails its calls with RateLimited.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from ravi_django.conf import conf
from ravi_django.engine.lease import backoff, stopwatch
from ravi_django.engine.lease.lease_state import Wait
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import AgentStep, ChatModel, ModelError, TransientError

MEMORY_S = 15.0  # that a call waits with its lease, at most
FIRST_S, LONGEST_S = 1.0, 60.0  # of a pause, if the provider names none
LOOK_S = 0.1  # between two checks whether a waiting call has to end

KIND = "provider"  # of such a wait in `waiting_on`


@dataclass(slots=True)
class Pause:
    """A key that refuses requests."""

    until: datetime  # by the database's clock
    since: float  # monotonic: the first refusal after the last answer
    counted_at: float  # monotonic: the last refusal that made the pause longer
    refusals: int = 0  # one of several requests at once counts


_pauses: dict[str, Pause] = {}


def is_limit(error: Exception) -> bool:
    """Whether the provider takes no request at present: 429, or 529 of a provider that is overloaded."""
    return isinstance(error, TransientError) and (error.status in (429, 529) or error.type == "RateLimitError")


def key_of(model: ChatModel) -> str:
    return str(getattr(model, "limit_key", model.name))


async def wait(recorder: Recorder, model: ChatModel, path: str, deadline: datetime | None) -> ModelError | None:
    """Return when the model's provider may be called; or at once an error, if the run's deadline comes first."""
    state, key = recorder.state, key_of(model)
    while (pause := _pauses.get(key)) is not None and state.stop is None:
        until = pause.until  # a later refusal may move it
        if (left := (until - state.present()).total_seconds()) <= 0:
            break
        if deadline is not None and until >= deadline:
            return _refused(model, f"takes requests again in {left:.0f} s, after the run's deadline")
        opening = Wait(KIND, model.name, partial(_is_over, recorder, until), until)
        if left > MEMORY_S and state.may_suspend(path):
            await recorder.waits.wait(opening, path)
            continue
        recorder.stream.progress(AgentStep.THINKING, {"model": model.name, "waiting_on": [opening.as_json()]})
        with recorder.waits.busy(), stopwatch.waiting():
            await _sleep(recorder, left)
    return None


def _is_over(recorder: Recorder, until: datetime) -> bool | None:
    return True if recorder.state.present() >= until else None


async def _sleep(recorder: Recorder, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while recorder.state.stop is None and (left := ends - time.monotonic()) > 0:
        recorder.state.token.check()
        await asyncio.sleep(min(left, LOOK_S))


def refused(
    recorder: Recorder, model: ChatModel, error: TransientError | ModelError, sent_at: float
) -> TransientError | ModelError | None:
    """None: a limit has refused the call, and its key is closed for a while. Else the call's error: it is no limit, the
    model's policy does not repeat it, or the key has refused everything for too long. `sent_at`: the monotonic
    time of the request."""
    policy = backoff.policy_of(model)
    if not isinstance(error, TransientError) or not is_limit(error) or not policy.retries(error):
        return error
    key, present = key_of(model), time.monotonic()
    pause = _pauses.get(key)
    if pause is None:
        pause = _pauses[key] = Pause(recorder.state.present(), present, 0.0)
    if present - pause.since > conf.PROVIDER_WAIT_S:
        return _refused(model, f"has refused all requests for {conf.PROVIDER_WAIT_S:g} s: {error}")
    if sent_at > pause.counted_at:
        pause.refusals, pause.counted_at = pause.refusals + 1, present
    longest = min(FIRST_S * 2 ** min(pause.refusals - 1, 10), LONGEST_S)
    asked = min(error.retry_after or 0.0, policy.max_retry_after_s)
    seconds = max(asked, longest) * random.uniform(1.0, 1.25)  # noqa: S311 - so that not all call at once
    pause.until = max(pause.until, recorder.state.present() + timedelta(seconds=seconds))
    return None


def answered(model: ChatModel) -> None:
    """Open the model's key: the provider takes requests."""
    _pauses.pop(key_of(model), None)


def forget() -> None:
    """For tests, which use models of the same names."""
    _pauses.clear()


def _refused(model: ChatModel, why: str) -> ModelError:
    return ModelError(f"the provider of {model.name} {why}", type="RateLimited", status=429)
