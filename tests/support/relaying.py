"""A process that relays the outbox until it is killed: `python -m tests.support.relaying <database> <bus>`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from tests.support import world


def main(database: str, bus: str) -> None:
    os.environ["DATABASE_URL"] = database
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django

    django.setup()
    from django.conf import settings

    forget = world.outbox_rows_forget

    def slowly(rows: Any) -> None:
        """So that most kills come between the bus and the commit."""
        time.sleep(0.02)
        forget(rows)

    world.replace("outbox_rows_forget", slowly)
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": bus}
    world.replace("RELAY_BATCH", 25)
    world.replace("RELAY_REST_S", 0.05)
    print("ready", flush=True)
    while True:
        world.relay_safely()
        time.sleep(0.005)


if __name__ == "__main__":
    main(*sys.argv[1:])
