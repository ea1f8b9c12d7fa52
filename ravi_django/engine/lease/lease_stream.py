"""The output of a lease holder to the stream of its run: the frames of committed rows, tokens and steps, in this order
also while the row of a tool's result waits for the next commit."""

from __future__ import annotations

from typing import Any

from ravi_django.engine.journal.entries import Entry
from ravi_django.kernel import AgentStep
from ravi_django.live.streams import frames
from ravi_django.live.streams.buffer import stream_url
from ravi_django.live.streams.frames import Frame, Source
from ravi_django.live.streams.publisher import Publisher
from ravi_django.models import Run


class LeaseStream:
    def __init__(self, publisher: Publisher, run: Run, epoch: int) -> None:
        self.publisher = publisher
        self.source = Source.of(run, epoch)
        self._held: dict[str, list[Frame]] = {}  # by path of a call whose row is not committed: what comes after it

    def hold(self, entry: Entry) -> None:
        """Hold later frames back until the row of this entry is committed."""
        self._held[entry.path] = []

    def published(self, entries: list[Entry], first_seq: int) -> None:
        """Note that these rows were written, and send their durable frames."""
        for seq, entry in enumerate(entries, first_seq):
            entry.is_written = True
            durable = [*frames.durable(self.source, entry, seq), *self._held.pop(entry.path, ())]
            if durable:
                self.publisher.emit(*durable)

    def delta(self, type: str, text: str, *, call: str, attempt: str, **more: str) -> None:
        """Stream a piece of text; see `frames.delta`."""
        self._send(frames.delta(self.source, type, text, call=call, attempt=attempt, **more))

    def progress(self, step: AgentStep, content: Any = None, **marks: Any) -> None:
        """Stream the agent's current step."""
        frame = frames.progress(self.source, step, content)
        frame.data |= marks
        self._send(frame)

    async def mark(self, content: Any, wait_s: float) -> None:
        """Stream at once, before frames that are held back, that a request to a model begins. Where the buffer is
        Valkey, wait until it has the frame, for at most `wait_s` seconds."""
        self.publisher.emit(frames.progress(self.source, AgentStep.THINKING, content))
        if stream_url() is not None:
            await self.publisher.sent(self.source.tree, wait_s)

    def _send(self, frame: Frame) -> None:
        if self._held:
            self._held[next(reversed(self._held))].append(frame)
        else:
            self.publisher.emit(frame)
