"""The event buffer as a table, for a small site without Redis. Readers poll."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import accumulate
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Exists, Max, OuterRef

from ravi_django.db import Bytes, connection, transaction
from ravi_django.models import Run, StreamFrame
from ravi_django.runtime.streams.buffer import POLL_S, REQUESTS, Batch, Locked, ticking

TICK_S = 0.2
REQUESTS_TICK_S = 2.0


class DatabaseBuffer:
    def append(self, batches: list[Batch]) -> list[list[int] | Exception]:
        outcomes: list[list[int] | Exception] = []
        for batch in batches:
            try:
                outcomes.append(self._append(batch))
            except DatabaseError as error:  # the other trees continue
                outcomes.append(error)
        return outcomes

    def _append(self, batch: Batch) -> list[int] | Exception:
        """Under the root row's lock: one writer of numbers at a time, and epochs are read from the rows."""
        with transaction.atomic():
            roots = Run.objects.filter(id=batch.tree)
            root = roots.select_for_update(no_key=True, skip_locked=batch.skip_locked)
            newest = root.values_list("lease_epoch", flat=True).first()
            if newest is None:
                return Locked() if roots.exists() else [-1] * len(batch.frames)
            end = f"{batch.tree}:done:{newest}"  # after it only a later epoch of the root continues
            runs = {frame.source.run for frame in batch.frames}
            epochs = {
                str(key): value for key, value in Run.objects.filter(id__in=runs).values_list("id", "lease_epoch")
            }
            copies = [
                frame.key or (f"{batch.writer}:{place}" if batch.writer else "")
                for place, frame in enumerate(batch.frames, batch.first)
            ]
            keys = {end, *filter(None, copies)}
            seen = set(StreamFrame.objects.filter(tree_id=UUID(batch.tree), key__in=keys).values_list("key", flat=True))
            last = StreamFrame.objects.filter(tree_id=UUID(batch.tree)).aggregate(last=Max("seq"))["last"] or 0
            numbers, rows = [], []
            for frame, key in zip(batch.frames, copies, strict=True):
                is_recorded = frame.key and frame.type != "stream.done"
                if frame.source.epoch < epochs.get(frame.source.run, 0) and not is_recorded:
                    numbers.append(-1)
                elif key and key in seen:
                    numbers.append(0)
                elif end in seen:
                    numbers.append(-1)
                else:
                    last += 1
                    seen.add(key)
                    rows.append(StreamFrame(tree_id=batch.tree, seq=last, key=key, body=json.loads(frame.encoded())))
                    numbers.append(last)
            if batch.generation:
                self._cut(batch.tree)
            StreamFrame.objects.bulk_create(rows)
        return numbers

    def _cut(self, tree: str) -> None:
        """Delete the frames from before the previous generation, which the newest frame of a beginning begins."""
        frames = StreamFrame.objects.filter(tree_id=UUID(tree))
        begun = frames.filter(body__run=tree, body__step="started", body__content=None).order_by("-seq").first()
        if begun is not None:
            frames.filter(seq__lt=begun.seq).delete()

    def read(self, tree: str, after: int, limit: int, room: int | None = None) -> list[dict[str, Any]] | None:
        rows = StreamFrame.objects.filter(tree_id=UUID(tree), seq__gt=after).order_by("seq")
        if room is not None:
            sizes = rows.values_list(Bytes("body"), flat=True)[:limit]
            limit = max(1, sum(total <= room for total in accumulate(sizes)))
        return [{"seq": seq, **body} for seq, body in rows.values_list("seq", "body")[:limit]]

    def read_many(self, trees: Sequence[str], limit: int) -> list[list[dict[str, Any]]]:
        return [self.read(tree, 0, limit) or [] for tree in trees]

    def expire(self, ended: Mapping[str, int]) -> None:
        """The end stays: a retry continues its numbers."""
        ends = [f"{tree}:done:{epoch}" for tree, epoch in ended.items()]
        later = StreamFrame.objects.filter(tree_id=OuterRef("tree_id"), seq__gt=OuterRef("seq"), key__in=ends)
        StreamFrame.objects.filter(Exists(later), tree_id__in=map(UUID, ended)).delete()

    def forget(self, trees: Sequence[str]) -> None:
        """They are deleted with the trees' rows."""

    def ping(self) -> None:
        connection.ensure_connection()

    def watch(self, topic: str, every_s: float = POLL_S) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        return ticking(min(every_s, REQUESTS_TICK_S) if topic == REQUESTS else TICK_S)

    def hint(self, topic: str) -> None:
        """Watchers poll."""
