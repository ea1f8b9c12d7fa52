"""Rate limits of a user, for REST and sockets alike: RAVI["LIMITS"], counted in the cache RAVI["CACHE_ALIAS"].

A call counts in its minute (UTC). Open sockets and streams have one cache key each; a key expires when its process
stops renewing it, for a killed process after OPEN_S. If the cache fails, nothing is limited, and the log has a warning.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.base import BaseCache
from django.core.cache.backends.redis import RedisCache

from ravi_django.conf import DEFAULTS, conf
from ravi_django.kernel import RateLimitedError
from ravi_django.kernel.checks import did_you_mean
from ravi_django.models import Run, Status
from ravi_django.users import permits

log = logging.getLogger("ravi.limits")

T = TypeVar("T")

WINDOW_S = 60
HOURLY = {"fork_bytes": 60 * WINDOW_S}  # the names that count in their hour
OPEN_S = 90  # life of an open socket's key without renewal
LATER_S = 10  # Retry-After when the time is not known
UNLIMITED = "ravi.unlimited"

_NOUNS = {"submit": "runs, retries and messages", "emit": "emits", "fork": "forks", "sessions": "changes of sessions"}
_NOUNS |= {"fork_bytes": "bytes of forked conversations", "follows": "changes of follows"}


def limit(name: str) -> int | None:
    """The limit of RAVI["LIMITS"] with this name, or None."""
    value: int | None = None if conf.LIMITS is None else {**DEFAULTS["LIMITS"], **conf.LIMITS}[name]
    return value


def setting_errors(setting: Any) -> Iterator[str]:
    """Errors in RAVI["LIMITS"]."""
    if setting is None:
        return
    if not isinstance(setting, Mapping):
        yield f" is {setting!r}, not a dict of numbers by name"
        return
    for name, value in setting.items():
        if name not in DEFAULTS["LIMITS"]:
            known = DEFAULTS["LIMITS"]
            yield f" has an unknown name {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}"
        elif value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            yield f"[{name!r}] is {value!r}, not a whole number above 0, or None"


def is_shared() -> bool:
    """Whether the cache counts the calls of all processes."""
    from django.core.cache.backends.locmem import LocMemCache

    cache = caches[conf.CACHE_ALIAS]
    return not isinstance(cache, LocMemCache) and type(cache).incr is not BaseCache.incr  # not atomic


def count(user: Any, name: str, times: int = 1) -> None:
    """Count a call of `user`, or `times` bytes of it. Raises RateLimitedError above the limit of this minute or hour.
    The permission `ravi.unlimited` is checked only then."""
    most = limit(name)
    if most is None or user is None or _added(name, user.pk, times) <= most or permits(user, UNLIMITED):
        return
    if name in HOURLY:  # what is refused copies nothing
        give_back(user, name, times)
    window = HOURLY.get(name, WINDOW_S)
    wait = window - int(time.time()) % window
    per = "an hour" if name in HOURLY else "a minute"
    text = f"at most {most} {_NOUNS.get(name, name)} {per}; try again in {wait} s"
    raise RateLimitedError(text, retry_after=wait)


def check_queued(user: Any) -> None:
    """Raises RateLimitedError when `user` has the most queued runs that are allowed."""
    most = limit("queued_runs")
    if most is None or user is None:
        return
    queued = Run.objects.filter(owner_id=user.pk, status=Status.QUEUED)[:most].count()
    if queued >= most and not permits(user, UNLIMITED):
        text = f"you have {queued} queued runs, which is the limit; try again when one has started"
        raise RateLimitedError(text, retry_after=LATER_S)


def take(user: Any, name: str, wanted: int) -> int:
    """Count up to `wanted` calls at once. Returns how many of them the limit of this minute allows."""
    most = limit(name)
    if most is None or user is None:
        return wanted
    room = most - (_added(name, user.pk, wanted) - wanted)
    if room >= wanted or permits(user, UNLIMITED):
        return wanted
    give_back(user, name, wanted - max(room, 0))
    return max(room, 0)


def give_back(user: Any, name: str, unused: int) -> None:
    """Uncount calls that `take` has counted."""
    if unused and limit(name) is not None and user is not None:
        _added(name, user.pk, -unused)


_redis: dict[str, RedisCache] = {}  # by its entry in CACHES


def site_cache() -> BaseCache:
    """Django makes a Redis cache for the context of each request, and leaves its connection to the garbage collection.
    So all threads share one here, with a limited number of connections."""
    entry: Mapping[str, Any] = settings.CACHES[conf.CACHE_ALIAS]
    if not entry["BACKEND"].endswith(".redis.RedisCache"):
        return caches[conf.CACHE_ALIAS]
    if (key := repr(entry)) not in _redis:
        pool = {"pool_class": "redis.BlockingConnectionPool", "max_connections": 10, "timeout": 1}
        _redis[key] = RedisCache(entry["LOCATION"], {**entry, "OPTIONS": {**pool, **entry.get("OPTIONS", {})}})
    return _redis[key]


def _added(name: str, pk: Any, times: int) -> int:
    """Add calls; returns the count of this minute or hour."""
    window = HOURLY.get(name, WINDOW_S)
    key = f"ravi:limit:{name}:{pk}:{int(time.time()) // window}"

    def add() -> int:
        cache = site_cache()
        cache.add(key, 0, timeout=2 * window)
        return int(cache.incr(key, times))

    return _ask_cache(add, 0)


def open_one(user: Any, name: str, most: int | None = None) -> str:
    """Count one open `name`; returns its key, "" without a limit. Raises RateLimitedError above `most`, by default the
    limit with this name."""
    most = most or limit(name)
    if most is None:
        return ""
    unknown: str | None = ""
    key = _ask_cache(lambda: _free(f"ravi:open:{name}:{user.pk}", most), unknown)
    if key is None and not permits(user, UNLIMITED):
        text = f"you have {most} open {name}, which is the limit; close one first"
        raise RateLimitedError(text, retry_after=LATER_S)
    return key or ""


wsgi_threads: WeakSet[threading.Thread] = WeakSet()  # that have served a call
_wait_lock = threading.Lock()
_waits = 0


@contextmanager
def wsgi_wait() -> Iterator[None]:
    """A call that blocks its thread of a WSGI server. Raises RateLimitedError where half of the threads wait: the
    others serve everybody else."""
    global _waits
    with _wait_lock:
        most = max(1, sum(thread.is_alive() for thread in tuple(wsgi_threads)) // 2)
        if _waits >= most:
            text = f"{_waits} calls wait in this process, which is the limit; try again, or use a stream"
            raise RateLimitedError(text, retry_after=LATER_S)
        _waits += 1
    try:
        yield
    finally:
        with _wait_lock:
            _waits -= 1


def _free(prefix: str, most: int) -> str | None:
    cache = site_cache()
    keys = [f"{prefix}:{number}" for number in range(most)]
    taken = cache.get_many(keys)
    free = (key for key in keys if key not in taken)
    return next((key for key in free if cache.add(key, 1, timeout=OPEN_S)), None)  # `add` succeeds for one caller


def keep_open(keys: Iterable[str]) -> None:
    held = {key: 1 for key in keys if key}
    _ask_cache(lambda: site_cache().set_many(held, timeout=OPEN_S), None)


def close_one(key: str) -> None:
    if key:
        _ask_cache(lambda: site_cache().delete(key), False)


def _ask_cache(ask: Callable[[], T], otherwise: T) -> T:
    try:
        return ask()
    except Exception as error:  # each backend has its own exceptions
        log.warning("calls are not limited: the cache failed: %s", error, extra={"action": "limits.uncounted"})
        return otherwise
