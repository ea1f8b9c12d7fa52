"""Makes the laboratory's processes: it has imported everything once, and forks workers, beat and clients off itself.

Thousands of workers are killed in a campaign; starting each from nothing would take two seconds of a core, a fork
takes a tenth of one. It opens no connection and starts no thread of its own. Whoever started it speaks with it over a
socket, one message a JSON object:

- in: `{"start": kind, "name": …}` with three file descriptors, for the child's standard ones; out: `{"pid": …}`
- in: `{"signal": number, "pid": …}`
- out, whenever one has ended: `{"ended": pid, "status": exit status, negative for a signal}`

When that socket closes, or this process dies, all children die with it.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import django

from project.process import _die_with_parent

POLL_S = 0.02
WORKER = ["--pool", "threads", "--concurrency", "16", "--without-mingle", "--without-gossip", "--without-heartbeat"]


def worker(name: str) -> None:
    from project.celery import app

    app.worker_main(["worker", "--hostname", f"{name}@lab", "--loglevel", "INFO", *WORKER])


def beat(name: str) -> None:
    from project.celery import app

    schedule = os.path.join(os.environ["CRASH_FOLDER"], name)
    app.start(["beat", "--schedule", schedule, "--pidfile", "", "--loglevel", "WARNING"])


def client(name: str) -> None:
    from tests.acceptance.crash import client

    client.main()


def person(name: str) -> None:
    from tests.acceptance.crash import person

    person.serve(name)


def migrate(name: str) -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0, run_syncdb=True)

    from tests.acceptance.crash.person import make_people

    make_people()


KINDS: dict[str, Callable[[str], None]] = {each.__name__: each for each in (worker, beat, client, person, migrate)}


def main() -> None:
    django.setup()
    import psycopg.types.json  # noqa: F401

    import ravi_django.runtime.sweeper
    import ravi_django.runtime.worker
    import ravi_django.tasks  # noqa: F401

    control = socket.socket(fileno=int(sys.argv[1]))
    children: set[int] = set()
    control.send(b'{"ready": true}')
    while True:
        readable, _, _ = select.select([control], [], [], POLL_S)
        if readable:
            message, handles, _, _ = socket.recv_fds(control, 65_536, 3)
            if not message:
                break
            asked = json.loads(message)
            if "start" in asked:
                children.add(_start(control, asked, handles))
            elif asked["pid"] in children:
                os.kill(asked["pid"], asked["signal"])
        _reap(control, children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _start(control: socket.socket, asked: dict[str, Any], handles: list[int]) -> int:
    prepare = _die_with_parent(signal.SIGKILL)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if prepare is not None:
                prepare()
            control.close()
            for number, handle in enumerate(handles):
                os.dup2(handle, number)
                os.close(handle)
            os.setsid()
            random.seed()
            KINDS[asked["start"]](asked["name"])
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    for handle in handles:
        os.close(handle)
    _tell(control, {"pid": pid})
    return pid


def _reap(control: socket.socket, children: set[int]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            _tell(control, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(control: socket.socket, said: dict[str, Any]) -> None:
    control.send(json.dumps(said).encode())


if __name__ == "__main__":
    main()
