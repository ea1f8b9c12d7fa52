"""`manage.py ravi_events`: the events on the event bus, one a line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis import RedisError

from ravi_django import events
from ravi_django.engine.journal.outbox import TOPIC
from ravi_django.kernel import Event, UnsupportedError


class Command(BaseCommand):
    help = "Print the stored events of the bus as JSON lines, oldest first; with --follow also new ones."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--type", default="*", metavar="PATTERN", help="such as run.* or hitl.requested")
        parser.add_argument("--run", default="", metavar="ID", help="only events of this run and of the runs below it")
        parser.add_argument("--topic", default=TOPIC)
        parser.add_argument(
            "--after", default="0", metavar="POSITION", help="only events after this position of a printed line"
        )
        parser.add_argument("--follow", action="store_true", help="continue until interrupted")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            bus = events.get_bus()
        except (ImproperlyConfigured, UnsupportedError) as error:
            raise CommandError(str(error)) from None
        try:
            asyncio.run(self._print(bus, options))
        except KeyboardInterrupt:
            return
        except (OSError, ValueError, RedisError) as error:
            raise CommandError(f"the event bus: {error}") from None

    async def _print(self, bus: events.Bus, options: dict[str, Any]) -> None:
        read = bus.stream if options["follow"] else bus.history
        try:
            async for event in read(options["topic"], after=options["after"], types=options["type"]):
                if not options["run"] or options["run"] in (event.correlation_id, event.data.get("root")):
                    self.stdout.write(_line(event))
                    self.stdout.flush()
        finally:
            await bus.close()


def _line(event: events.Delivered) -> str:
    """ASCII only: escape sequences in an event must not reach the terminal."""
    return json.dumps({"position": event.position, **event.model_dump(mode="json", include=set(Event.model_fields))})
