"""The laboratory's processes: `python -m tests.acceptance.crash.host KIND NAME`.

Thousands of workers are killed in a campaign. `serve` is a fork server that has read the laboratory's settings and
imported what all kinds need, so that one of them costs a tenth of a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support import forks, world

WORKER = ["--pool", "threads", "--concurrency", "16", "--queues", "ravi"]
WORKER += ["--without-mingle", "--without-gossip", "--without-heartbeat"]


def worker(name: str) -> None:
    from django.db import connections

    from project.celery import app

    proxies = os.environ["CRASH_PROXIES"].split(",")
    database = connections.settings["default"]
    database["PORT"] = proxies[int(name[1:]) % len(proxies)]
    database["OPTIONS"]["application_name"] = name
    world.replace("APPENDING_REST_S", float(os.environ.get("CRASH_WIRE_REST_S", world.APPENDING_REST_S)))
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


def serve(path: str) -> None:
    import django

    django.setup()
    for verb in ("sweeper_sweep", "get_worker"):
        world.place_of(verb)  # imports its module
    import ravi_django.tasks  # noqa: F401

    forks.serve(Path(path))


KINDS: dict[str, Callable[[str], None]] = {
    each.__name__: each for each in (worker, beat, client, person, migrate, serve)
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](sys.argv[2])
