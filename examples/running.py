"""What the patterns share: running one from the command line.

    export DJANGO_SETTINGS_MODULE=project.settings
    python manage.py migrate
    python -m examples.router "My last invoice is wrong."

RAVI_MODEL names the model (any litellm name, keys by its own variables); unset, the offline rehearsal model plays all
the parts, by rule.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async

from ravi_django.kernel import Agent


async def until(look: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `look`, which reads the database, finds at last."""
    async with asyncio.timeout(seconds):
        while not (found := await sync_to_async(look)()):
            await asyncio.sleep(0.05)
        return found


def play(team: list[Agent], question: str) -> None:
    """Register the agents, ask the first of them, print its answer."""
    import django

    django.setup()
    from ravi_django.agents import Runtime

    async def ask() -> Any:
        async with Runtime() as rt:
            for agent in team:
                await rt.register(agent)
            return await rt.result(await rt.submit(team[0], " ".join(sys.argv[1:]) or question))

    print(asyncio.run(ask()))
