"""Admission of model calls to the budgets of their tree, user and tenant: reserve, wait for room, refuse.

A refusal is recorded as the call's row, so that a replay raises it too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal

from django.db import DatabaseError

from ravi_django.agents.memory.compaction.tokens import TokenCounter
from ravi_django.calls.llm import pricing
from ravi_django.engine.journal.entries import Entry, Recorded
from ravi_django.engine.lease import paths, stopwatch
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import (
    BudgetExhaustedError,
    ChatMessage,
    ChatModel,
    GenerationOptions,
    LeaseLostError,
    ModelError,
    UnpricedModelError,
    Usage,
)
from ravi_django.models import HumanRequest
from ravi_django.people import top_ups
from ravi_django.runs.budgets import accounts, ledger
from ravi_django.runs.budgets.ledger import REFUSED, Amount, Exhausted

log = logging.getLogger("ravi.budgets")

RESERVE_TOKENS = 4096  # of the output of a call without `max_tokens`
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0  # between two tries to reserve

_freeing: set[asyncio.Task[None]] = set()
_largest: dict[str, tuple[int, Decimal]] = {}  # by model: the most output tokens and dollars of a call in this process


async def admit(
    recorder: Recorder,
    entry: Entry,
    model: ChatModel,
    messages: Sequence[ChatMessage],
    options: GenerationOptions,
    number: int,
) -> None:
    """Reserve the most that the call of this entry may use: its request of this number is next. Waits while other calls
    may give back enough.

    Raises BudgetExhaustedError, recorded. With `when_exhausted` "ask" a person is asked first, while the run suspends.
    """
    if not accounts.accounts_of(recorder.lease.run):
        return
    amount = await _estimate(model, messages, options, f"{recorder.lease.epoch}.{number}")
    pause = FIRST_PAUSE_S
    while True:
        seen = recorder.state.wake_state.wake_seq
        nested = recorder.state.nested
        async with recorder.effect():
            verdict = await _reserve(recorder, entry.path, amount)
            if verdict is True and recorder.state.must_park(nested=nested):  # an open tool must not wait for this one
                await _free(recorder, entry.path)
            if isinstance(verdict, Exhausted):
                asked = await top_ups.ask(recorder, entry.path, verdict.account)
                if asked is False:
                    await _refuse(recorder, entry, verdict)
        if verdict is True:
            top_ups.note_closed(recorder, entry.path)
            return
        if isinstance(verdict, Exhausted):
            if isinstance(asked, HumanRequest):
                await top_ups.wait(recorder, entry.path, asked, seen)
            continue
        with recorder.waits.busy(), stopwatch.waiting():
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all try at once
            if pause == MAX_PAUSE_S:
                await recorder.database.call(ledger.free_abandoned, recorder.lease, recorder.state.present().date())
        pause = min(2 * pause, MAX_PAUSE_S)


def check_priced(recorder: Recorder, model: ChatModel) -> None:
    """Raises ModelError, which is recorded, for a model without a price under a budget in dollars."""
    if any("max_cost_usd" in account.limits for account in accounts.accounts_of(recorder.lease.run)):
        try:
            pricing.check_priced(model)
        except UnpricedModelError as error:
            raise ModelError(str(error), type=UnpricedModelError.__name__) from None


async def _reserve(recorder: Recorder, path: str, amount: Amount) -> Exhausted | bool:
    recorder.lease.reserved.add("")  # so that the end of the lease frees it even if this is cancelled
    with paths.entered(None):
        reserving = asyncio.ensure_future(
            recorder.database.call(ledger.reserve, recorder.lease, path, amount, recorder.state.present().date())
        )
    try:
        return await asyncio.shield(reserving)
    except asyncio.CancelledError:
        await asyncio.wait([reserving])  # `give_up` must find the reservation
        raise
    except DatabaseError as error:  # as when an effect cannot be recorded: another lease repeats the call
        log.exception("run %s: could not reserve", recorder.lease.run_id, extra={"action": "reserve.failed"})
        raise LeaseLostError(recorder.lease.run_id, recorder.lease.epoch) from error


def give_up(recorder: Recorder, path: str) -> None:
    """Free the reservation of a call that was cancelled and has no row: other calls must not wait for it."""
    if path in recorder.lease.reserved:
        with paths.entered(None):
            task = asyncio.create_task(_free(recorder, path))
        _freeing.add(task)
        task.add_done_callback(_freeing.discard)


async def free(recorder: Recorder, path: str) -> None:
    """Free the reservation of a call that comes again later."""
    if path in recorder.lease.reserved:
        await _free(recorder, path)


async def _free(recorder: Recorder, path: str) -> None:
    try:
        await recorder.threads.call(ledger.free, recorder.lease, path)
    except Exception as error:  # the end of this lease or the next claim frees it
        log.warning("run %s: could not free: %s", recorder.lease.run_id, error, extra={"action": "reserve.failed"})


# --------------------------------------------------------------------------------------------------- how much


async def _estimate(
    model: ChatModel, messages: Sequence[ChatMessage], options: GenerationOptions, request: str = ""
) -> Amount:
    """The input tokens, as compaction counts them, plus the most output tokens; and the most that they cost."""
    seen = _largest.get(model.name)
    tokens_in = await TokenCounter(model).total(messages)
    tokens_out = options.max_tokens or max(RESERVE_TOKENS, seen[0] if seen else 0)
    usage = Usage(input_tokens=tokens_in, output_tokens=tokens_out)
    prices = map(pricing.prices_of, getattr(model, "models", (model,)))
    costs = [accounts.dollars(pricing.cost_by(one, usage)) for one in prices if one is not None]
    most = max([*costs, seen[1] if seen else Decimal(0)])
    return Amount(tokens_in + tokens_out, most, model.name, request, tokens_in)


def learn(recorder: Recorder, entry: Entry) -> None:
    """Have the model's next call reserve as much as its largest one has used."""
    if entry.usage is not None and accounts.accounts_of(recorder.lease.run):
        tokens, cost = _largest.get(entry.name, (0, Decimal(0)))
        _largest[entry.name] = max(tokens, entry.usage.output_tokens), max(cost, accounts.dollars(entry.cost))


def forget() -> None:
    """For tests, which use models of the same names."""
    _largest.clear()


# ---------------------------------------------------------------------------------------------------- refusal


async def _refuse(recorder: Recorder, entry: Entry, verdict: Exhausted) -> None:
    message = _message(recorder, verdict)
    entry.error = {"type": BudgetExhaustedError.__name__, "message": message, REFUSED: verdict.account}
    top_ups.note_closed(recorder, entry.path)
    await recorder.record(entry)
    raise BudgetExhaustedError(message)


def raise_refused(row: Recorded) -> None:
    if row.error is not None and REFUSED in row.error:
        raise BudgetExhaustedError(row.error.get("message", ""))


def _message(recorder: Recorder, verdict: Exhausted) -> str:
    kind, _, rest = verdict.account.partition(":")
    used = f"has used {verdict.used.normalize():f} of its {verdict.name} of {verdict.limit.normalize():f}"
    if kind == "tree":
        owner = "the run" if recorder.lease.run.parent_id is None else f"the tree of run {rest}"
        return f"{owner} {used}; submit it with a larger budget"
    name, _, day = rest.rpartition(":")
    owner = f"user {name}" if kind == "user" else f"tenant {name!r}"
    tomorrow = date.fromisoformat(day) + timedelta(days=1)
    return f"{owner} {used} for {day}; continue from {tomorrow} 00:00 UTC, or raise the daily budget of the {kind}"
