"""`manage.py ravi_worker`: the whole engine in one process, without a broker. For small sites."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from ravi_django.calls.llm import warm
from ravi_django.conf import conf
from ravi_django.db import connection
from ravi_django.engine.worker.worker import start_line
from ravi_django.runs.catalog import agent_models, specs
from ravi_django.runtime import Runtime

POLL_S = 0.2


class Command(BaseCommand):
    help = (
        "Execute runs and sweep in this process, without Celery and a broker. Any number of these may run. SIGINT and "
        "SIGTERM drain: open calls get RAVI['DRAIN_S'] seconds, other runs are released; a second signal ends the "
        "process at once."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            agents = specs.known_agents()
            warms = agent_models.uses_litellm()
        except DatabaseError as error:
            raise CommandError(f"the database is not ready (manage.py migrate?): {error}") from error
        if not agents:
            message = (
                "there is no agent: call ravi_django.register(agent) in an app's agents.py, or make one in the admin"
            )
            raise CommandError(message)
        agent_models.log_errors()
        connection.close()  # the engine has connections of its own
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve(warms))

    async def _serve(self, warms: bool) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if warms:
            threading.Thread(target=warm, name="ravi-warm", daemon=True).start()
        async with Runtime(poll_s=POLL_S) as runtime:
            self._say(f"{await runtime.engine.database.call(start_line, runtime.engine)}; Ctrl-C drains")
            await stop.wait()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # a second signal ends the process
            held = len(runtime.engine.active)
            self._say(f"ravi_worker: draining {held} run{'' if held == 1 else 's'}, for up to {conf.DRAIN_S:g} s")
        self._say("ravi_worker: stopped")

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
