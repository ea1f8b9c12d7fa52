"""The signals beside messages: who has read a message from its inbox has no more to be told of it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.db.models.functions import Substr

from ravi_django.db import transaction
from ravi_django.models import InboxMessage, Signal
from ravi_django.runtime import clock
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.store import fence
from ravi_django.runtime.store.journal import store_big_values
from ravi_django.runtime.store.leases import Lease

BESIDE = "pub:"  # begins the key of a signal beside a message; the inbox's id of that follows


def told_of(run_id: UUID, upto: int) -> list[int]:
    """The unread signals that tell of messages which the inbox has up to this place."""
    known = InboxMessage.objects.filter(
        run_id=run_id, id__lte=upto, message_id=Substr(OuterRef("key"), len(BESIDE) + 1)
    )
    unread = Signal.objects.filter(run_id=run_id, consumed_at=None, key__startswith=BESIDE)
    return list(unread.filter(Exists(known)).order_by("id").values_list("id", flat=True))


def receive(lease: Lease, entries: Sequence[Entry], turns: Sequence[NewTurn] = (), *, signals: Sequence[int]) -> int:
    """Record what was received, and with it that the signals of these messages are read."""
    store_big_values(entries)
    with transaction.atomic():
        first = fence.append(lease, entries, turns)
        read(signals)
        return first


def read(signals: Sequence[int]) -> None:
    """In the caller's transaction, which is fenced."""
    Signal.objects.filter(id__in=signals, consumed_at=None).update(consumed_at=clock.now())
