"""Admission of model calls to the budgets of their tree, user and tenant: reserve, wait for room, refuse, ask for more.

What is refused is recorded as the call's row, so that every replay is told the same.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from ravi_django.agents.compaction.tokens import TokenCounter
from ravi_django.capabilities.llm import pricing
from ravi_django.conf import conf
from ravi_django.kernel import (
    BudgetExhaustedError,
    ChatMessage,
    ChatModel,
    ExecutionBudget,
    GenerationOptions,
    InvalidInputError,
    LeaseLostError,
    Usage,
)
from ravi_django.models import HumanRequest
from ravi_django.runtime import paths, requests, site_rules, store, tool_caps
from ravi_django.runtime.entries import Entry, Recorded
from ravi_django.runtime.gate import Wait
from ravi_django.runtime.shown import request_shown

if TYPE_CHECKING:
    from ravi_django.runtime.effects import Effects

log = logging.getLogger("ravi.budgets")

FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0  # between two looks for room

_freeing: set[asyncio.Task[None]] = set()
_largest: dict[
    str, tuple[int, Decimal]
] = {}  # by model: output tokens and dollars of a call that this process has seen


async def admit(
    effects: Effects, entry: Entry, model: ChatModel, messages: Sequence[ChatMessage], options: GenerationOptions
) -> None:
    """Reserve what the call of this entry may come to use. Waits while what other calls hold may turn out to be enough.

    Raises BudgetExhaustedError, recorded. With `when_exhausted` "ask" a person is asked first, while the run suspends.
    """
    if not store.accounts_of(effects.lease.run):
        return
    amount = await _estimate(model, messages, options)
    pause = FIRST_PAUSE_S
    while True:
        seen = effects.facts.wake_seq
        nested = effects.nested
        async with effects.performing():
            verdict = await _reserve(effects, entry.path, amount)
            if verdict is True and effects.must_park(nested=nested):  # an open tool may wait for what it would hold
                await _free(effects, entry.path)
            may_ask = isinstance(verdict, store.Exhausted) and _asks(effects, entry.path, verdict)
            if isinstance(verdict, store.Exhausted) and not may_ask:
                await _refuse(effects, entry, verdict)
        if verdict is True:
            _note_closed(effects, entry.path)
            return
        if isinstance(verdict, store.Exhausted):
            await _ask(effects, entry, verdict, seen)
            continue
        with effects.busy(), tool_caps.waiting():
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all look at once
            if pause == MAX_PAUSE_S:
                await effects.database.call(store.free_abandoned, effects.lease, effects.present().date())
        pause = min(2 * pause, MAX_PAUSE_S)


async def _reserve(effects: Effects, path: str, amount: store.Amount) -> store.Exhausted | bool:
    effects.lease.reserved.add("")  # so that the lease's end looks, however this one is cut short
    with paths.entered(None):
        reserving = asyncio.ensure_future(
            effects.database.call(store.reserve, effects.lease, path, amount, effects.present().date())
        )
    try:
        return await asyncio.shield(reserving)
    except asyncio.CancelledError:
        await asyncio.wait([reserving])  # who gives up must find what it has reserved
        raise
    except DatabaseError as error:  # as where an effect cannot be recorded: the run is taken over
        log.exception("run %s: could not reserve", effects.lease.run_id, extra={"action": "reserve.failed"})
        raise LeaseLostError(effects.lease.run_id, effects.lease.epoch) from error


def give_up(effects: Effects, path: str) -> None:
    """The call was cancelled, by a tool's timeout, say, and has no row: nobody may wait for what it held."""
    if path in effects.lease.reserved:
        with paths.entered(None):
            task = asyncio.create_task(_free(effects, path))
        _freeing.add(task)
        task.add_done_callback(_freeing.discard)


async def _free(effects: Effects, path: str) -> None:
    try:
        await effects.threads.call(store.free, effects.lease, path)
    except Exception as error:  # the lease's end does it, or the takeover's
        log.warning("run %s: could not free: %s", effects.lease.run_id, error, extra={"action": "reserve.failed"})


# --------------------------------------------------------------------------------------------------- how much


async def _estimate(model: ChatModel, messages: Sequence[ChatMessage], options: GenerationOptions) -> store.Amount:
    """Tokens in, by the same count as compaction's, and at most out; what they cost where that is known."""
    seen = _largest.get(model.name)
    tokens_in = await TokenCounter(model).total(messages)
    tokens_out = options.max_tokens or max(int(conf.RESERVE_TOKENS), seen[0] if seen else 0)
    prices = getattr(model, "prices", None) or pricing.site_prices(model.name) or pricing.listed_prices(model.name)
    cost = None if prices is None else pricing.cost_by(prices, Usage(input_tokens=tokens_in, output_tokens=tokens_out))
    known = seen[1] if seen else None
    return store.Amount(
        tokens_in + tokens_out, known if cost is None else max(store.dollars(cost), known or Decimal(0))
    )


def learn(effects: Effects, entry: Entry) -> None:
    """A model may use more than was thought: the next call of it reserves as much."""
    if entry.usage is not None and store.accounts_of(effects.lease.run):
        tokens, cost = _largest.get(entry.name, (0, Decimal(0)))
        _largest[entry.name] = max(tokens, entry.usage.output_tokens), max(cost, store.dollars(entry.cost))


def forget() -> None:
    """For tests: another has other models of the same names."""
    _largest.clear()


# ---------------------------------------------------------------------------------------------------- refusal


async def _refuse(effects: Effects, entry: Entry, verdict: store.Exhausted) -> None:
    message = _words(effects, verdict)
    entry.error = {"type": BudgetExhaustedError.__name__, "message": message, store.REFUSED: verdict.account}
    _note_closed(effects, entry.path)
    await effects.record(entry)
    raise BudgetExhaustedError(message)


def raise_refused(row: Recorded) -> None:
    """By what the row of a model call holds."""
    if row.error is not None and store.REFUSED in row.error:
        raise BudgetExhaustedError(row.error.get("message", ""))


def _words(effects: Effects, verdict: store.Exhausted) -> str:
    kind, _, rest = verdict.account.partition(":")
    used = f"has used {verdict.used.normalize():f} of its {verdict.name} of {verdict.limit.normalize():f}"
    if kind == "tree":
        whose = "the run" if effects.lease.run.parent_id is None else f"the tree of run {rest}"
        return f"{whose} {used}; submit it with a larger budget"
    name, _, day = rest.rpartition(":")
    whose = f"user {name}" if kind == "user" else f"tenant {name!r}"
    tomorrow = date.fromisoformat(day) + timedelta(days=1)
    return f"{whose} {used} for {day}; go on from {tomorrow} 00:00 UTC, or raise the daily budget of the {kind}"


# ----------------------------------------------------------------------------------------------------- top-up


def _asks(effects: Effects, path: str, verdict: store.Exhausted) -> bool:
    root = effects.lease.run.root or effects.lease.run
    if not verdict.account.startswith("tree:") or (root.budget or {}).get("when_exhausted") != "ask":
        return False
    try:
        effects.check_may_wait(path)
    except InvalidInputError:
        return False
    return True


async def _ask(effects: Effects, entry: Entry, verdict: store.Exhausted, seen: int) -> None:
    """Wait for a person's answer to the one request of the tree, which is opened unless another run has. Raises
    BudgetExhaustedError, recorded, when it was denied."""
    async with effects.performing():
        pending = await effects.database.call(store.pending_top_up, effects.lease)
        if pending is False:
            await _refuse(effects, entry, verdict)
        if pending is None:
            pending = await _open(effects, entry)
    if not isinstance(pending, HumanRequest):  # another was quicker, or there is room by now
        return

    def met() -> bool | None:  # when it is answered, and when its run ends without that, who waits is woken
        return True if effects.facts.wake_seq != seen else None

    await effects.wait(Wait("request", str(pending.id), met), entry.path)


async def _open(effects: Effects, entry: Entry) -> HumanRequest | None:
    run = effects.lease.run
    text, arguments = await effects.database.call(store.suggestion, effects.lease)
    if not arguments:
        return None
    attempt = 1
    while effects.journal.system(_place(entry.path, attempt)) or _place(entry.path, attempt) in effects.requested:
        attempt += 1
    request = requests.new(
        run,
        entry.path,
        HumanRequest.Kind.APPROVAL,
        present=effects.present(),
        to=site_rules.addressees("budget"),
        expires=False,
        attempt=attempt,
        text=text,
        tool=store.TOP_UP,
        arguments=arguments,
    )
    await requests.address(effects, request)
    place = _place(entry.path, attempt)
    effects.entangled = True  # first: the commit may stand though this task is cancelled over it
    try:
        await effects.record(
            Entry("request.opened", place, request.tool, result=request_shown(request)),
            partial(store.open_top_up, request=request),
        )
    except store.TooManyRequests:
        return None
    effects.requested[place] = str(request.id)
    return request


def _place(path: str, attempt: int) -> str:
    return f"@request.{path}.{attempt}"


def _note_closed(effects: Effects, path: str) -> None:
    """For whoever watches: the run goes on, or ends, by what was answered."""
    for (place, attempt), request in effects.facts.requests.items():
        if place == path and request.tool == store.TOP_UP and request.answer:
            result = {"id": str(request.id), "answer": request.answer}
            effects.note_once(Entry("request.closed", f"@closed{_place(path, attempt)}", request.tool, result=result))


def check_top_up(request: HumanRequest, action: str, arguments: Any) -> dict[str, Any]:
    """The limits that this answer sets: those suggested, or the person's own. Raises InvalidInputError."""
    if action == "deny":
        if arguments:
            raise InvalidInputError("arguments go with approve or edit, not with deny", field="arguments")
        return {}
    given = dict(request.arguments or {}) if arguments is None and action == "approve" else arguments
    if not isinstance(given, Mapping) or not given or set(given) - set(store.LIMITS) or None in given.values():
        raise InvalidInputError(f"arguments are new limits: {', '.join(store.LIMITS)}", field="arguments")
    if fault := next(_faults_of_limits(given), None):
        raise InvalidInputError(f"arguments{fault}", field="arguments")
    return dict(given)


# --------------------------------------------------------------------------------------------------- settings


def faults(setting: Any) -> Iterator[str]:
    """What is wrong with RAVI["DAILY_BUDGETS"], in words that name the place."""
    if not isinstance(setting, Mapping):
        yield f" is {setting!r}, not a dict of user and tenant"
        return
    for kind, limits in setting.items():
        if kind not in ("user", "tenant"):
            yield f" has an unknown key {kind!r}"
        elif not isinstance(limits, Mapping):
            yield f"[{kind!r}] is {limits!r}, not a dict of limits"
        else:
            yield from (f"[{kind!r}]{fault}" for fault in _faults_of_limits(limits))


def _faults_of_limits(limits: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in limits.items():
        if name not in store.LIMITS:
            yield f" has an unknown key {name!r}"
        elif value is None:
            continue
        else:
            try:
                ExecutionBudget.model_validate({name: value}, strict=True)
                sound = 0 <= value < 10**8 if name == "max_cost_usd" else value < 2**62
            except ValueError:
                sound = False
            if not sound:
                wanted = "number of dollars" if name == "max_cost_usd" else "whole number above 0"
                yield f"[{name!r}] is {value!r}, not a {wanted}"
