"""Send the events of the bus to a run as signals."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from ravi_django.kernel import Event, IllegalTransitionError
from ravi_django.models import Run
from ravi_django.runtime.events.bus import EVENTS, NotYet
from ravi_django.runtime.events.relay import get_bus
from ravi_django.runtime.runs import signals
from ravi_django.runtime.sources import items


async def feed_agent(
    run: Run | UUID | str,
    *,
    topic: str = EVENTS,
    types: str = "*",
    signal: str = "new_source_item",
    group: str | None = None,
    after: str | None = None,
) -> str:
    """Send a run, such as an InformationAgent's, each event of these types as a signal, once. The signal's payload is
    the event as JSON. Events about runs of its tree, or of its agent, are skipped: otherwise each would cause the next.

    While the run has RAVI["SOURCE_UNREAD"] of these signals unread, the events wait on the bus.

    The default group is `agent:<run>`, so that a restart continues at the same event. Returns the subscription's id;
    events for a run that has ended are ignored.
    """
    run_id = str(run.id if isinstance(run, Run) else run)
    tree, agent = (str(run.tree_id), run.agent) if isinstance(run, Run) else await sync_to_async(_whose)(run_id)

    async def send(event: Event) -> None:
        if tree not in (event.correlation_id, event.data.get("root")) and event.data.get("agent") != agent:
            await sync_to_async(_signal)(run_id, signal, event)

    return await get_bus().subscribe(topic, send, types=types, group=group or f"agent:{run_id}", after=after)


def _whose(run_id: str) -> tuple[str, str | None]:
    close_old_connections()
    run = Run.objects.only("root", "agent").filter(id=run_id).first()
    return (run_id, None) if run is None else (str(run.tree_id), run.agent)


def _signal(run_id: str, name: str, event: Event) -> None:
    payload: dict[str, Any] = event.model_dump(mode="json", include=set(Event.model_fields))
    close_old_connections()  # or a restart of the database would fail every event after it
    if items.is_full(run_id, name):
        raise NotYet(f"run {run_id} has RAVI['SOURCE_UNREAD'] signals {name} unread")
    with suppress(IllegalTransitionError):
        signals.signal(run_id, name, payload, key=f"event:{event.id}"[:64])
