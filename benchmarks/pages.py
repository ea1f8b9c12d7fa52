"""How fast the pages open in Chromium: the chat, a run with a long journal, the dashboard over many runs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.report import Figure
from benchmarks.stack import Stack, web
from project.process import wait_until

LOADS = 5  # warm ones
OPENED = """() => {
  const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  return {
    paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
    kB: entries.reduce((sum, one) => sum + one.transferSize, 0) / 1000,
  };
}"""


def measure(stack: Stack, rows: int, runs: int) -> Iterator[Figure]:
    from django.contrib.auth import get_user_model

    from tests.support.browser import chromium, new_page
    from tests.support.journals import long
    from tests.support.many_runs import fill
    from tests.support.runs import make_run

    fill(runs)
    user = get_user_model().objects.create_superuser("pages")
    run = make_run("react/assistant", owner=user)
    long(run, rows)
    try:
        with web(stack) as address, chromium() as use:
            wait_until(lambda: _listens(address), 60.0)

            def opened(path: str, shown: str) -> tuple[float, float]:
                with use() as browser:
                    return _opened(new_page(browser, f"http://{address}", user), path, shown)

            yield from _figures("page_chat", *opened("/ravi/ui/chat/", "ravi-chat:defined"))
            yield from _figures(f"page_run_{rows}", *opened(f"/ravi/ui/runs/{run.id}/", ".lane"))
            for days in (1, 90):
                name = f"page_dashboard_{runs}_runs_{days}_days"
                yield from _figures(name, *opened(f"/ravi/ui/dashboard/?days={days}", ".tile"))
    finally:
        user.delete()


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True


def _opened(page: Any, path: str, shown: str) -> tuple[float, float]:
    """Median milliseconds to the first contentful paint of warm loads; kilobytes of the first load."""

    def load() -> dict[str, float]:
        page.goto(path)
        page.wait_for_selector(shown)
        page.wait_for_load_state("networkidle")
        found: dict[str, float] = page.evaluate(OPENED)
        return found

    first = load()
    return median(load()["paint"] for _ in range(LOADS)), first["kB"]


def _figures(name: str, paint: float, size: float) -> list[Figure]:
    return [Figure(f"{name}_paint", None, paint, "ms"), Figure(f"{name}_transferred", None, size, "kB")]
