"""`manage.py ravi_subscribe`: a process that calls a function of the site with events of the bus."""

from __future__ import annotations

import asyncio
import inspect
import signal
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.utils.module_loading import import_string
from redis import RedisError

from ravi_django import events
from ravi_django.engine.journal.outbox import TOPIC
from ravi_django.kernel import Event, UnsupportedError


class Command(BaseCommand):
    help = "Call a function with each event, until SIGTERM or SIGINT. Processes of one group share its events."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("handler", metavar="DOTTED.PATH", help="a function, async or not, of one Event")
        parser.add_argument("--group", help="by default the handler's path")
        parser.add_argument("--type", default="*", metavar="PATTERN", help="such as run.* or hitl.requested")
        parser.add_argument("--topic", default=TOPIC)
        parser.add_argument("--after", metavar="POSITION", help="where a new group begins; 0: with all stored events")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            bus, handler = events.get_bus(), _handler(options["handler"])
        except (ImproperlyConfigured, ImportError, UnsupportedError) as error:
            raise CommandError(str(error)) from None
        try:
            asyncio.run(self._serve(bus, handler, options))
        except (OSError, ValueError, RedisError) as error:
            raise CommandError(f"the event bus: {error}") from None

    async def _serve(self, bus: events.Bus, handler: events.Handler, options: dict[str, Any]) -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, RuntimeError):  # not the main thread, which receives no signals
                loop.add_signal_handler(number, ended.set)
        group = options["group"] or options["handler"]
        try:
            await bus.subscribe(options["topic"], handler, types=options["type"], group=group, after=options["after"])
            self.stdout.write(f"ravi_subscribe: {options['handler']} reads {options['topic']} as {group}")
            self.stdout.flush()
            await ended.wait()
        finally:
            await bus.close()


def _handler(path: str) -> events.Handler:
    """Raises ImportError."""
    function = import_string(path)
    if not callable(function):
        raise ImportError(f"{path} is not a function")
    if inspect.iscoroutinefunction(function):
        return function  # type: ignore[no-any-return]

    async def in_a_thread(event: Event) -> None:
        await sync_to_async(_with_fresh_connections)(function, event)

    return in_a_thread


def _with_fresh_connections(function: Any, event: Event) -> None:
    """A database restart must not make every later event fail."""
    close_old_connections()
    function(event)
