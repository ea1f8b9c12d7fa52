"""UUIDv7: sorted by time, so that rows created together are near each other in an index (RFC 9562)."""

import os
import threading
import time
from datetime import datetime
from uuid import UUID

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """48 bits of milliseconds, 12 bits of their fraction, 62 random bits. Rising within a process."""
    global _last
    with _lock:
        now = time.time_ns()
        millis, fraction = divmod(now, 1_000_000)
        stamp = (millis << 12) | (fraction * 4096 // 1_000_000)
        stamp = max(stamp, _last + 1)
        _last = stamp
    value = ((stamp >> 12) << 80) | (0x7 << 76) | ((stamp & 0xFFF) << 64) | (0b10 << 62)
    return UUID(int=value | (int.from_bytes(os.urandom(8), "big") >> 2))


def first_id_of(moment: datetime) -> UUID:
    """The smallest id of that millisecond: the index of the ids finds rows by time."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)
