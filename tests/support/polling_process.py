"""A process that polls what is due until it is killed: `python -m tests.support.polling_process DATABASE_URL`."""

from __future__ import annotations

import os
import sys
import time

from tests.support import world

if __name__ == "__main__":
    os.environ |= {"DATABASE_URL": sys.argv[1], "DJANGO_SETTINGS_MODULE": "project.settings"}
    import django

    django.setup()

    from django.conf import settings

    from tests.support.runs import code

    settings.RAVI = {**settings.RAVI, "SOURCE_NETWORKS": ["127.0.0.0/8"], "SOURCE_CONCURRENCY": 4, "SOURCE_GAP_S": 0.0}
    world.replace("dispatch_publish", lambda *args: None)  # type: ignore[assignment]
    world.replace("LEASE_S", 0.2)  # nobody waits long for the dead

    async def read(ctx, inbox):  # type: ignore[no-untyped-def]
        await ctx.sleep_until_signal("new_source_item")

    code(read)
    print("ready", flush=True)
    while True:
        world.poll_due()
        time.sleep(0.01)
