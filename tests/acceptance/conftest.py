"""The site and the browser that several folders use. Imports are inside: Django's settings are not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.acceptance.ws.live_site import Server


@pytest.fixture(scope="session")
def site_server() -> Iterator[Server]:
    from project.asgi import application
    from tests.acceptance.ws.live_site import Server

    running = Server(application)
    yield running
    running.stop()


@pytest.fixture
def server(transactional_db: None, site_server: Server) -> Iterator[Server]:
    """The project over HTTP and websockets, on a thread of this process."""
    from tests.support.world import forget_readers

    yield site_server
    site_server.empty()
    forget_readers(close=True)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """`with chromium() as browser:`, where the test uses the database itself before and after."""
    from tests.support import browser

    with browser.chromium() as use:
        yield use


@pytest.fixture
def new_page(chromium: Any, transactional_db: None) -> Iterator[Callable[..., Any]]:
    """`new_page(site, user, **options)`: a page with that user logged in. See tests/support/browser.py."""
    from tests.support import browser

    with chromium() as running:
        yield partial(browser.new_page, running)
