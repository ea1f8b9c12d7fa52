"""One site for the whole folder, with two warm workers; a worker that a test ends is replaced in the background."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.site_process import Site, Worker

_site: Site | None = None


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    global _site
    # Not pytest's folder: each new session of pytest closes it to PostgreSQL's user, those running beside it too.
    with TemporaryDirectory(prefix="ravi-site-") as folder, Site(Path(folder)) as _site:
        _site.start_worker(from_nothing=True)  # the one `celery -A` that is no fork
        _site.start_worker()
        yield _site
    _site = None


@pytest.fixture
def workers(site: Site) -> list[Worker]:
    """Two, both warm."""
    for dead in [worker for worker in site.workers if not worker.child.running]:
        site.replace(dead)  # a test that failed half-way left it
    return [site.warm(worker) for worker in site.workers]


@pytest.fixture
def worker(site: Site) -> Worker:
    """One that is warm; another may still be starting."""
    return site.warm(next(worker for worker in site.workers if worker.child.running))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if report.failed and _site is not None:
        for child in _site.children:
            said = child.log.read_text(errors="replace") if child.log.exists() else ""
            lines = [line for line in said.splitlines() if "ravi.sweep" not in line]
            report.sections.append((f"log of {child.name} (running: {child.running})", "\n".join(lines[-80:])))
    return report
