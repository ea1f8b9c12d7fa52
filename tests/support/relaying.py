"""A process that relays the outbox until it is killed: `python -m tests.support.relaying <database> <bus>`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def main(database: str, bus: str) -> None:
    os.environ["DATABASE_URL"] = database
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django

    django.setup()
    from django.conf import settings

    from ravi_django.runtime.bus import relay
    from ravi_django.runtime.store import outbox_rows

    forget = outbox_rows.forget

    def slowly(rows: Any) -> None:
        """So that most kills come between the bus and the commit."""
        time.sleep(0.02)
        forget(rows)

    outbox_rows.forget = slowly
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": bus}
    relay.BATCH, relay.REST_S = 25, 0.05
    print("ready", flush=True)
    while True:
        relay.relay_safely()
        time.sleep(0.005)


if __name__ == "__main__":
    main(*sys.argv[1:])
