"""What the providers' accounts take: the limits of RAVI["MODEL_LIMITS"], those that a person has set, and learned ones.

One row of ModelLimit for each account and model (or pattern) is shared by all processes. While a process sends less
than half of its part, and nobody waits, it asks nobody. Else each request takes its time from the row, by the generic
cell rate algorithm: `next_at` is when all requests so far have been paid back, and a request may be earlier by a burst.

The first refusal sets a rate: 0.9 of what was taken in the last 10 s, as far as one process knows; of several processes
that are refused in that round trip, the highest rate counts. Later refusals lower it once in a round trip, and answers
raise it, slowly at first.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import ChatModel
from ravi_django.kernel.checks import did_you_mean
from ravi_django.models import ModelLimit
from ravi_django.runs import workers

NAMES = ("requests_per_min", "tokens_per_min", "at_once")
WINDOW_S = 10.0  # over which requests are counted
BURST_S, LEAST_BURST = 2.0, 5.0  # of a rate, and requests: so many may come at once
LEAST_PER_MIN = 10.0  # that refusals teach
LEAST_SPAN_S = 0.5  # over which a rate is measured
LEAST_TAKEN = 10  # requests in WINDOW_S from which a rate is learned; a pause is enough for fewer
RISE_S = 5.0  # between two rises of a learned rate
RISE, MOST_RISE = 0.01, 0.1  # the first one and the largest: each is twice the one before, until a request is refused
FIRST_S, LONGEST_S = 1.0, 60.0  # of a pause, if the provider names none; doubled with each refusal


@dataclass(slots=True, eq=False)
class Limit:
    """What this process knows of one limit and sends under it."""

    key: str
    name: str
    tenant: str
    settings: Mapping[str, float]
    row: ModelLimit | None = None
    sent: deque[tuple[float, float]] = field(default_factory=deque)  # monotonic time and tokens of requests that count
    open: int = 0
    permitted: int = 0  # of them, with a permit
    debt: float = 0.0  # tokens that were used beyond the reserved ones
    ratio: float = 1.0  # of used tokens to estimated ones

    def most(self, name: str) -> float | None:
        """A limit that a person or the settings give."""
        value = getattr(self.row, name, None)
        return self.settings.get(name) if value is None else float(value)

    @property
    def per_s(self) -> float | None:
        """Requests a second."""
        learned = self.row.learned_per_min if self.row else None
        rates = [rate for rate in (self.most("requests_per_min"), learned) if rate]
        return min(rates) / 60 if rates else None

    @property
    def tokens_per_s(self) -> float | None:
        rate = self.most("tokens_per_min")
        return rate / 60 if rate else None

    @property
    def room(self) -> float:
        """Requests that this process may begin now beside its open ones."""
        at_once = self.most("at_once")
        return (max(1.0, at_once // _workers) if at_once else math.inf) - self.open

    def counted(self) -> tuple[int, float]:
        """Requests and tokens of the last WINDOW_S."""
        self._forget_old()
        return len(self.sent), sum([tokens for _, tokens in self.sent])

    def _forget_old(self) -> None:
        since = time.monotonic() - WINDOW_S
        while self.sent and self.sent[0][0] < since:
            self.sent.popleft()

    def is_idle(self, present: datetime) -> bool:
        """Whether a request may be sent without asking: half of the limits is free, and nobody waits."""
        row = self.row
        if self.room < 1 or (row is not None and (row.waiting or is_after(row.paused_until, present))):
            return False
        rate, tokens_rate = self.per_s, self.tokens_per_s
        if rate is None and tokens_rate is None:
            return True
        requests, tokens = self.counted()
        most = WINDOW_S / 2 / _workers
        return (rate is None or requests < rate * most) and (tokens_rate is None or tokens < tokens_rate * most)

    def expected_s(self, present: datetime) -> float:
        """Seconds that a call has to wait, as far as this process knows."""
        row, rate = self.row, self.per_s
        if row is None:
            return 0.0
        queue = row.waiting / rate if rate else 0.0
        return (next_slot(self, row, present) - present).total_seconds() + queue

    def refuses_too_long(self, present: datetime) -> bool:
        row = self.row
        if row is None or row.refusing_since is None or (row.paused_by and is_after(row.paused_until, present)):
            return False
        if not is_after(row.paused_until, present - timedelta(seconds=LONGEST_S)):
            return False  # nobody has asked for a while
        return bool((present - row.refusing_since).total_seconds() > conf.PROVIDER_WAIT_S)

    @property
    def paused_until(self) -> datetime | None:
        return self.row.paused_until if self.row else None

    @property
    def row_id(self) -> int | None:
        return self.row.id if self.row else None

    def begin(self, tokens: float, *, has_permit: bool = False) -> None:
        """Count a request of about so many tokens, until it is open no more."""
        self.open += 1
        self.permitted += has_permit
        self.sent.append((time.monotonic(), tokens))
        self._forget_old()

    @contextmanager
    def counts_as_open(self) -> Iterator[None]:
        """Count a request as open that waits for its time."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def taken_without_refused(self) -> tuple[float, float] | None:
        """About how many requests all processes have sent in so many seconds, without one that was refused; None if
        there are too few."""
        if self.sent:
            self.sent.pop()
        if (taken := self.counted()[0]) < LEAST_TAKEN:
            return None
        return _workers * taken, max(LEAST_SPAN_S, min(WINDOW_S, time.monotonic() - self.sent[0][0]))

    def used(self, estimated: float, tokens: float) -> None:
        """The tokens of an answer."""
        self.debt += tokens - estimated
        if estimated:
            self.ratio += 0.1 * (tokens / estimated * self.ratio - self.ratio)


_limits: dict[tuple[str, str, str], Limit] = {}  # by model, account and tenant
_rows: dict[str, ModelLimit] = {}
_workers = 1  # live ones, which share `at_once` and what is sent without asking


def of(model: ChatModel, tenant: str) -> Limit:
    """The limit of a model's calls. Its key is the most specific pattern, or the model, with server and account."""
    account = str(getattr(model, "account", ""))
    limit = _limits.get((model.name, account, tenant))
    if limit is None:
        pattern, settings, of_tenant = _settings(model.name, tenant)
        key = sha256(f"{pattern} {account} {tenant if of_tenant else ''}".encode()).hexdigest()
        shared = (one for one in _limits.values() if one.key == key)
        limit = next(shared, None) or Limit(key, pattern, tenant if of_tenant else "", settings, _rows.get(key))
        _limits[model.name, account, tenant] = limit
    return limit


def _settings(name: str, tenant: str) -> tuple[str, Mapping[str, float], bool]:
    """The pattern of a model's limits, they, and whether the pattern has the tenant; the longest pattern that fits."""
    table: Mapping[str, Mapping[str, float]] = conf.MODEL_LIMITS or {}
    fitting = [pattern for pattern in table if fnmatchcase(name, pattern.replace("{tenant}", tenant or "*"))]
    if not fitting:
        return name, {}, False
    pattern = max(fitting, key=lambda one: (one == name, len(one.replace("*", ""))))
    return pattern, table[pattern], "{tenant}" in pattern


def settings_of(row: ModelLimit) -> Mapping[str, float]:
    settings: Mapping[str, float] = (conf.MODEL_LIMITS or {}).get(row.name, {})
    return settings


def refresh() -> None:
    """Read the rows and the number of live workers again."""
    global _rows, _workers
    before = {limit.key: limit.row for limit in list(_limits.values())}
    _rows = {row.key: row for row in ModelLimit.objects.all()}
    if _rows or conf.MODEL_LIMITS:
        _workers = max(1, workers.alive().count())
    for limit in list(_limits.values()):
        if limit.row is before.get(limit.key):  # else it was written meanwhile
            limit.row = _rows.get(limit.key, limit.row)


def free_at_once(limit: Limit, permits: int) -> float:
    """How many requests may be woken beside so many permits, and about as many open ones in each process as here."""
    at_once = limit.most("at_once")
    return math.inf if at_once is None else at_once - permits - _workers * (limit.open - limit.permitted)


def known() -> dict[str, Limit]:
    """The limits of this process, by key."""
    return {limit.key: limit for limit in list(_limits.values())}


def is_waited_for() -> bool:
    """Whether suspended runs may wait for one of the limits."""
    return any(row.waiting for row in [*_rows.values(), *(limit.row for limit in list(_limits.values()) if limit.row)])


def forget() -> None:
    """For tests, which use models of the same names."""
    global _workers
    _limits.clear()
    _rows.clear()
    _workers = 1


# ------------------------------------------------------------------------------------------ writes of the row


def take(limit: Limit, tokens: float, present: datetime, within_s: float) -> datetime | None:
    """Take the next time for a request of so many tokens, at most `within_s` seconds from now, before no run that
    waits. Returns it, or None: the run has to wait without a worker."""
    with transaction.atomic():
        row = limit.row = _locked(limit)
        slot = next_slot(limit, row, present)
        has_turn = not row.waiting and (slot - present).total_seconds() <= within_s
        has_turn = has_turn or within_s == math.inf
        if has_turn:
            spend(limit, row, max(present, row.paused_until or present), 1, tokens + limit.debt)
            limit.debt = 0.0
        row.mean_tokens += 0.1 * (tokens - row.mean_tokens)
        row.save()
    return slot if has_turn else None


def next_slot(limit: Limit, row: ModelLimit, present: datetime) -> datetime:
    """The earliest time of the next request."""
    begin = max(present, row.paused_until or present)
    if (rate := limit.per_s) and row.next_at:
        begin = max(begin, row.next_at - _tolerance(rate))
    if limit.tokens_per_s and row.tokens_at:
        begin = max(begin, row.tokens_at - timedelta(seconds=BURST_S))
    return begin


def free_until(limit: Limit, row: ModelLimit, until: datetime) -> float:
    """Requests whose time comes before `until`."""
    free = math.inf
    if rate := limit.per_s:
        late = row.next_at or until
        free = ((until + _tolerance(rate) - late).total_seconds()) * rate + 1
    if tokens_rate := limit.tokens_per_s:
        late = row.tokens_at or until
        seconds = (until - late).total_seconds() + BURST_S
        free = min(free, seconds * tokens_rate / max(1.0, row.mean_tokens) + 1)
    return max(0.0, free)


def spend(limit: Limit, row: ModelLimit, begin: datetime, requests: int, tokens: float) -> None:
    """Count requests from `begin` on."""
    _count(row, begin, requests)
    if rate := limit.per_s:
        row.next_at = max(row.next_at or begin, begin) + timedelta(seconds=requests / rate)
    if tokens_rate := limit.tokens_per_s:
        row.tokens_at = max(row.tokens_at or begin, begin) + timedelta(seconds=tokens / tokens_rate)


def _count(row: ModelLimit, moment: datetime, requests: float) -> None:
    """Add to the requests a second, a mean over about WINDOW_S."""
    age_s = max(0.0, (moment - (row.counted_at or moment)).total_seconds())
    row.pace = max(0.0, row.pace * math.exp(-age_s / WINDOW_S) + requests / WINDOW_S)
    row.counted_at = max(moment, row.counted_at or moment)


def refuse(
    limit: Limit, present: datetime, sent_at: datetime, pause_s: float, jitter: float, taken: tuple[float, float] | None
) -> None:
    """A request that was sent at `sent_at` was refused: pause for at least `pause_s`, and lower the rate once in a
    round trip. `taken`: see `taken_without_refused`."""
    with transaction.atomic():
        row = _locked(limit)
        row.refused += 1
        _count(row, present, -1)
        is_over = not is_after(row.paused_until, present - timedelta(seconds=LONGEST_S))
        row.refusing_since = present if is_over else row.refusing_since or present
        rate = row.learned_per_min
        if row.adapted_at is None or sent_at > row.adapted_at:
            row.refusals, row.adapted_at = row.refusals + 1, present
            if rate is not None:
                row.rises = 0
                age_s = max(LEAST_SPAN_S, (present - row.created_at).total_seconds())
                per_s = row.pace / (1 - math.exp(-age_s / WINDOW_S))  # of a mean that has only begun
                row.learned_per_min = max(LEAST_PER_MIN, min(0.9 * rate, max(0.95 * 60 * per_s, 0.45 * rate)))
            elif taken is not None:
                row.pace, row.learned_per_min = taken[0] / WINDOW_S, max(LEAST_PER_MIN, 0.9 * 60 * taken[0] / taken[1])
        elif taken is not None and rate and row.rises is None:  # of the first round trip
            row.learned_per_min = max(rate, 0.9 * 60 * taken[0] / taken[1])
        seconds = max(pause_s, min(FIRST_S * 2 ** min(max(row.refusals - 1, 0), 10), LONGEST_S) * jitter)
        until = present + timedelta(seconds=seconds)
        if not is_after(row.paused_until, present):
            row.paused_by = ""
        row.paused_until = max(row.paused_until or until, until)
        limit.row = row
        full = row.paused_until + _tolerance(limit.per_s or 1.0)  # no burst after a pause
        row.next_at = max(row.next_at or full, full)
        row.save()


def wants_answer(limit: Limit, present: datetime) -> bool:
    """Whether an answer changes the row."""
    row = limit.row
    if row is None:
        return False
    rises = row.learned_per_min and not is_after(row.adapted_at, present - timedelta(seconds=RISE_S))
    return bool(row.refusing_since or rises)


def answered(limit: Limit, present: datetime) -> None:
    with transaction.atomic():
        row = limit.row = _locked(limit)
        row.refusing_since, row.refusals = None, 0
        if row.learned_per_min and not is_after(row.adapted_at, present - timedelta(seconds=RISE_S)):
            rises = row.rises or 0
            rise = min(RISE * 2 ** min(rises, 10), MOST_RISE)
            row.learned_per_min, row.adapted_at = row.learned_per_min * (1 + rise) + 1, present
            row.rises = rises + 1
        row.save()


def _locked(limit: Limit) -> ModelLimit:
    rows = ModelLimit.objects.select_for_update(no_key=True)
    row = rows.filter(key=limit.key).first()
    if row is None:
        made = ModelLimit(key=limit.key, name=limit.name[:200], tenant=limit.tenant)
        ModelLimit.objects.bulk_create([made], ignore_conflicts=True)
        row = rows.get(key=limit.key)
    return row


def _tolerance(per_s: float) -> timedelta:
    """How much earlier than the steady rate a request may be."""
    return timedelta(seconds=(max(LEAST_BURST, BURST_S * per_s) - 1) / per_s)


def is_after(moment: datetime | None, present: datetime) -> bool:
    return moment is not None and moment > present


# ---------------------------------------------------------------------------------------------- the setting


def setting_errors(table: Any) -> Iterator[str]:
    """The errors of RAVI["MODEL_LIMITS"], each with its place."""
    if not isinstance(table, Mapping):
        yield f" is {table!r}, not a dict of model name or pattern to limits"
        return
    for pattern, settings in table.items():
        if not isinstance(pattern, str) or not isinstance(settings, Mapping):
            yield f"[{pattern!r}] is no dict of limits under a model's name or pattern"
            continue
        for name, value in settings.items():
            if name not in NAMES:
                yield f"[{pattern!r}] has an unknown key {name!r}; known: {', '.join(NAMES)}{did_you_mean(name, NAMES)}"
            elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                yield f"[{pattern!r}][{name!r}] is {value!r}, not a number above 0"
