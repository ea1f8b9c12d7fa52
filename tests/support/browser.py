"""Chromium for the tests of pages: one browser for all tests of a process."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from django.test import Client

from tests.support.patience import BOUND_S, seconds
from tests.support.required import missing
from tests.support.runs import in_background

HINT = "playwright install chromium"
HERE = "MAP site.test 127.0.0.1, MAP *.site.test 127.0.0.1"  # for tests of two origins of one site
ARGS = ["--no-sandbox", "--disable-gpu", f"--host-resolver-rules={HERE}"]


@contextmanager
def chromium() -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Run one Chromium. `with use() as browser` lends it to a test, and closes the contexts that the test opened.

    Playwright marks its event loop as running in this thread. `use` limits the mark to its block: outside of it,
    asyncio.run and Django's database work in this thread.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright", "pip install playwright")
    with sync_playwright() as playwright:
        browser = _launch(playwright)
        loop = asyncio.get_running_loop()

        @contextmanager
        def use() -> Iterator[Any]:
            asyncio._set_running_loop(loop)
            try:
                yield browser
            finally:
                for context in browser.contexts:
                    for routed in (*context.pages, context):
                        routed.unroute_all(behavior="ignoreErrors")  # an error would appear in the next test
                    context.close()
                asyncio._set_running_loop(None)

        asyncio._set_running_loop(None)
        yield use
        with use():
            browser.close()
        asyncio._set_running_loop(loop)  # Playwright removes the mark


def _launch(playwright: Any) -> Any:
    """Playwright's own Chromium, or the system's."""
    from playwright.sync_api import Error

    for path in [None, *filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))]:
        with suppress(Error):
            return playwright.chromium.launch(executable_path=path, args=ARGS)
    return missing("Chromium", HINT)


def new_page(browser: Any, site: str, user: Any = None, **options: Any) -> Any:
    """A page in a context of its own. `page.errors` are its uncaught exceptions, `page.console` its console errors."""
    context = browser.new_context(base_url=site, **options)
    if user is not None:
        context.add_cookies([{"name": "sessionid", "value": elsewhere(_session_of, user), "url": site}])
    page = context.new_page()
    page.set_default_timeout(seconds(20) * 1000)  # below the feed page's interval of 30 s: a lost hint is noticed
    page.errors, page.console = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda said: page.console.append(said.text) if _is_error(said) else None)
    return page


def _is_error(said: Any) -> bool:
    """A site without an icon is not at fault. To answer for it with `page.route` would switch the HTTP cache off."""
    return said.type == "error" and not said.location["url"].endswith("/favicon.ico")


def _session_of(user: Any) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies["sessionid"].value


def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """Call what uses the database or a loop of its own: Playwright's loop runs in the test's thread."""
    return in_background(function, *args).result(BOUND_S)


def looks(page: Any, *widths: int) -> Iterator[tuple[str, int]]:
    """Show the page in both themes, at each width."""
    for scheme in ("light", "dark"):
        for width in widths:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("Promise.allSettled(document.getAnimations().map(change => change.finished))")
            yield scheme, width


def contrast(page: Any, selector: str) -> float:
    """WCAG's ratio of an element's text to its background."""
    front, back = page.evaluate(
        """selector => {
            let element = document.querySelector(selector);
            const colour = getComputedStyle(element).color;
            let behind = 'rgba(0, 0, 0, 0)';
            while (behind === 'rgba(0, 0, 0, 0)' && element) {
                behind = getComputedStyle(element).backgroundColor;
                element = element.parentElement;
            }
            return [colour, behind];
        }""",
        selector,
    )
    light, dark = sorted((_luminance(front), _luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
