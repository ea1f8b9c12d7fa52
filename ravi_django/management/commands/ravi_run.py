"""`manage.py ravi_run AGENT "text"`: one run, shown on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from contextlib import aclosing
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.urls import NoReverseMatch, reverse
from redis.exceptions import RedisError

from ravi_django.conf import conf, worker_line
from ravi_django.engine.db.threads import readers
from ravi_django.kernel import InvalidInputError, KernelError, NotFoundError
from ravi_django.live.streams import reading
from ravi_django.management.people import user_named
from ravi_django.management.transcript import Transcript
from ravi_django.models import Run, Session, Status
from ravi_django.people import mail
from ravi_django.runs import failures
from ravi_django.runs.catalog import specs
from ravi_django.runs.checks import uuid_of
from ravi_django.runs.submit import submit_once
from ravi_django.runtime import Runtime
from ravi_django.services.shapes import RunSerializer

FAILED, BAD_USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

PATIENCE_S = 10.0  # until it says that no worker has taken the run


class Command(BaseCommand):
    help = (
        "Run an agent on a text and show its steps until it ends. Exit status: 0 completed; 1 failed, cancelled or "
        "blocked; 2 bad usage; 130 after Ctrl-C, after which the run continues. Workers execute the run; with "
        "RAVI['ENGINE'] = 'inline' this process does."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("agent", metavar="AGENT", help="type/key, such as react/assistant")
        parser.add_argument("text")
        parser.add_argument("--session", metavar="ID", help="continue this conversation: its id or its name")
        parser.add_argument("--user", metavar="NAME", help="the owner of the run; by default the session's owner")
        parser.add_argument("--json", action="store_true", help="one frame a line, and the run object last")

    def handle(self, *args: Any, agent: str, text: str, **options: Any) -> None:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without UTF-8
        self._json = options["json"]
        self._transcript = Transcript(self._out, self._err)
        self._run: Run | None = None
        session, user = options["session"], user_named(options["user"], BAD_USAGE)
        try:
            specs.find_or_list(agent)
            asked = {"session": session, "user": user or _owner(session)}
            if not (options["traceback"] or failures.runs_log.hasHandlers()):
                failures.runs_log.addHandler(logging.NullHandler())  # the last line says it
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                inline = conf.ENGINE == "inline"
                runner.run(self._inline(agent, text, asked) if inline else self._watched(agent, text, asked))
        except (NotFoundError, InvalidInputError) as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
        except KernelError as error:
            raise CommandError(str(error), returncode=FAILED) from error
        except DatabaseError as error:
            text = f"the database is not ready (manage.py migrate?): {error}"
            raise CommandError(text, returncode=FAILED) from error
        except KeyboardInterrupt:
            self._leave()
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._leave()
            sys.exit(BROKEN_PIPE)
        except (RedisError, ConnectionError) as error:
            self._leave()
            message = f"its events cannot be read, {type(error).__name__}: {error}; see manage.py ravi_doctor"
            raise CommandError(message, returncode=FAILED) from error
        self._report()

    async def _inline(self, agent: str, text: str, asked: dict[str, Any]) -> None:
        """Execute the run in this process."""
        async with Runtime() as runtime:
            run_id = await runtime.submit(agent, text, **asked)
            self._run = await readers().call(_read, run_id)
            await self._follow(self._run)

    async def _watched(self, agent: str, text: str, asked: dict[str, Any]) -> None:
        """Let workers execute the run."""
        self._run = (await readers().call(partial(submit_once, agent, text, **asked)))[0]
        waiting = asyncio.create_task(self._wonder(self._run))
        try:
            await self._follow(self._run)
        finally:
            waiting.cancel()

    async def _follow(self, run: Run) -> None:
        async with aclosing(reading.follow(run.id, whole=True)) as frames:
            async for frame in frames:
                if self._json:
                    self._out(json.dumps(frame) + "\n")
                else:
                    self._transcript.take(frame)
                if _is_blocked(frame, run):
                    return

    async def _wonder(self, run: Run) -> None:
        await asyncio.sleep(PATIENCE_S)
        if (await readers().call(_read, run.id)).status == Status.PENDING:
            self._err(f"No worker has taken the run yet. Is one running? {worker_line()}\n")

    def _report(self) -> None:
        assert self._run is not None
        run = Run.objects.get(id=self._run.id)
        if self._json:
            self._out(json.dumps(RunSerializer(run).data) + "\n")
        else:
            self._transcript.end(run.output)
        if run.status != Status.COMPLETED:
            error = run.error or {}
            sys.stdout.flush()
            message = f"run {run.id} is {run.status}: {error.get('type', '')}: {error.get('message', '')}"
            raise CommandError(message, returncode=FAILED)

    def _leave(self) -> None:
        """Say that the run continues, and how to follow or cancel it."""
        if self._run is None:
            return
        run = Run.objects.get(id=self._run.id)
        if run.is_terminal:
            self._err(f"\nRun {run.id} is {run.status}.\n")
            return
        inline = " (in manage.py ravi_worker, or the next process with an engine)" if conf.ENGINE == "inline" else ""
        self._err(f"\nRun {run.id} continues{inline}.\n")
        for what, path in (
            ("follow: ", partial(mail.path_to, "run-events", id=run.id)),
            ("cancel: POST ", partial(mail.path_to, "run-cancel", id=run.id)),
            ("admin: ", partial(reverse, "admin:ravi_run_change", args=[run.id])),
        ):
            with contextlib.suppress(NoReverseMatch):
                self._err(f"  {what}{path()}\n")

    def _out(self, text: str) -> None:
        self.stdout.write(text, ending="")
        self.stdout.flush()

    def _err(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stderr.write(text, ending="")


def _read(run_id: Any) -> Run:
    return Run.objects.get(id=run_id)


def _is_blocked(frame: dict[str, Any], run: Run) -> bool:
    """Whether the run waits for an operator, without a `stream.done`."""
    content = frame.get("content")
    return (
        frame["type"] == "progress"
        and frame["step"] == "error"
        and frame["run"] == str(run.id)
        and isinstance(content, dict)
        and content.get("status") == "blocked"
    )


def _owner(session: str | None) -> Any:
    """The owner of the session with this id. None for a name: names belong to an owner."""
    row = Session.objects.select_related("owner").filter(id=uuid_of(session)).first()
    return row and row.owner
