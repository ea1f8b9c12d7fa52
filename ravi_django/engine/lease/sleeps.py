"""Wait for a time or a signal. The end of a wait is recorded; until then the run may suspend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.utils import timezone

from ravi_django.engine.db import clock
from ravi_django.engine.journal.append import appending
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.inbox import announcement, depth_in
from ravi_django.engine.lease.lease_state import Wait
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.engine.lease.state import RunState
from ravi_django.engine.lease.wake_state import NOT_READ, PEOPLES, REPLY
from ravi_django.kernel import InvalidInputError, LeaseLostError
from ravi_django.kernel.checks import check_seconds, check_text
from ravi_django.models import InboxMessage, Signal

MAX_NAME = 200  # characters of a signal's name


async def sleep_until(ctx: RunState, when: datetime | timedelta | float) -> None:
    recorder, path = ctx.recorder, ctx.path()
    if await recorder.recall(path, "timer", "", _length(when)) is not None:
        return
    until = fixed_until(ctx, path, "timer", "", when)
    await recorder.waits.wait(Wait("timer", "", lambda: over(ctx, until), until), path)
    async with recorder.effect():
        await recorder.record(Entry("timer", path, result={"until": until.isoformat()}))


async def sleep_until_signal(
    ctx: RunState,
    name: str,
    until: datetime | timedelta | float | None,
    timeout: float | timedelta | None = None,
    *,
    or_message: bool = False,
) -> Any:
    """Wait for a signal of this name, or take one that arrived before. Returns its payload, `{}` if it has none; None
    if `until` came first, or with `or_message` if there is a message that the code was not given."""
    check_name(name)
    if name.startswith(PEOPLES) and not name.startswith(REPLY):
        raise InvalidInputError(f"{name!r} answers a question: await ctx.ask_human for it", field="name")
    if timeout is not None:
        if until is not None:
            raise InvalidInputError("until and timeout both end the wait: pass one of them", field="timeout")
        until = check_seconds("timeout", timeout)
    recorder, path = ctx.recorder, ctx.path()
    row = await recorder.recall(path, "signal", name)
    if row is not None:
        return _payload(ctx, row.result.get("payload"), row.read_upto)
    deadline = None if until is None else fixed_until(ctx, path, "signal", name, until)

    def met() -> Any:
        if (taken := recorder.state.wake_state.take_signal(name)) is not None:
            return taken
        if (position := recorder.state.wake_state.take_message(name, recorder.state.mailbox.read_upto)) is not None:
            return position
        if or_message and recorder.state.mailbox.has_unread:
            return "message"
        return "timed_out" if deadline is not None and over(ctx, deadline) else None

    ended_by = await recorder.waits.wait(Wait("signal", name, met, deadline), path)
    async with recorder.effect():
        if isinstance(ended_by, str):
            await recorder.record(Entry("signal", path, name, result={ended_by: True}))
            return None
        entry = await _consume(recorder, path, name, ended_by)
    return _payload(ctx, entry.result["payload"], entry.read_upto)


async def _consume(recorder: Recorder, path: str, name: str, ended_by: Any) -> Entry:
    if isinstance(ended_by, int):
        body = await recorder.database.call(InboxMessage.objects.values_list("body", flat=True).get, id=ended_by)
        entry = Entry("signal", path, name, result={"payload": announcement(body)}, read_upto=ended_by)
        await recorder.record(entry, partial(consume_message, message_id=ended_by))
    else:
        entry = Entry("signal", path, name, result={"payload": await payload_of(recorder, ended_by)})
        await recorder.record(entry, partial(consume_signal, signal_id=ended_by[0]))
    return entry


def _payload(ctx: RunState, payload: Any, message: int | None) -> Any:
    """`message`: the one that ended the wait."""
    if payload is not None:
        ctx.publication_depth = depth_in(payload) if message else 0
    return payload


async def payload_of(recorder: Recorder, taken: tuple[int, Any]) -> Any:
    """The payload of a signal that was taken, `{}` if it has none. One query if it was not read before."""
    signal_id, payload = taken
    if payload is NOT_READ:
        payload = await recorder.database.call(Signal.objects.values_list("payload", flat=True).get, id=signal_id)
    return {} if payload is None else payload


def over(ctx: RunState, until: datetime) -> bool | None:
    return True if ctx.recorder.state.present() >= until else None


def fixed_until(ctx: RunState, path: str, kind: str, name: str, when: datetime | timedelta | float) -> datetime:
    """The end of a wait, as first computed: "in an hour" must not move with each replay."""
    begun = ctx.recorder.journal.started(path)
    if begun is not None and begun.request:
        return datetime.fromisoformat(begun.request["until"])
    until = moment(ctx, when)
    ctx.recorder.record_with_next_once(Entry(kind, path, name, phase="started", request={"until": until.isoformat()}))
    return until


def _length(when: datetime | timedelta | float) -> float | None:
    """The seconds of a duration. None for a time, which code may compute from its own clock."""
    return when.total_seconds() if isinstance(when, timedelta) else None if isinstance(when, datetime) else when


def moment(ctx: RunState, when: datetime | timedelta | float) -> datetime:
    """A time, or a duration from now (a number is in seconds), as a time in UTC. Raises InvalidInputError."""
    if isinstance(when, timedelta):
        return ctx.recorder.state.present() + when
    if isinstance(when, datetime):
        aware = when if timezone.is_aware(when) else timezone.make_aware(when, timezone.get_default_timezone())
        return aware.astimezone(UTC)
    if isinstance(when, int | float) and not isinstance(when, bool):
        return ctx.recorder.state.present() + timedelta(seconds=when)
    raise InvalidInputError(f"a time is a datetime or a timedelta, not {when!r}", field="when")


def check_name(name: Any) -> None:
    check_text("name", name, MAX_NAME)


@appending
def consume_message(lease: Lease, *, message_id: int) -> None:
    """Append the row of a wait, and mark the message that ended it."""
    if not InboxMessage.objects.filter(id=message_id, consumed_at=None).update(consumed_at=clock.now()):
        raise LeaseLostError(lease.run_id, lease.epoch)


@appending
def consume_signal(lease: Lease, *, signal_id: int) -> None:
    """Append the row of a wait, and mark the signal that ended it as read."""
    if not Signal.objects.filter(id=signal_id, consumed_at=None).update(consumed_at=clock.now()):
        raise LeaseLostError(lease.run_id, lease.epoch)
