"""An event loop for one coroutine, on the thread that calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

END_S = 1.0  # what tasks that are left have, to hear that they are cancelled


def run_alone(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but tasks that take no notice of being cancelled are left behind, where that waits for ever."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(coroutine)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=END_S))
            loop.run_until_complete(asyncio.wait({loop.create_task(loop.shutdown_asyncgens())}, timeout=END_S))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
