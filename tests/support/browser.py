"""Chromium for the tests of pages: one browser for all tests of a process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from django.test import Client

from tests.support.patience import BOUND_S, seconds
from tests.support.required import missing
from tests.support.runs import in_background

HINT = "playwright install chromium"
HERE = "MAP site.test 127.0.0.1, MAP *.site.test 127.0.0.1"  # for tests of two origins of one site
AXE = (Path(__file__).parent / "vendor" / "axe.js").read_text()  # axe-core 4.12.1, of npm
BOXES = (Path(__file__).parent / "page_boxes.js").read_text()
SERIOUS = """async ([part, contrast]) => {
    const { violations } = await axe.run(
        { include: part, exclude: ['.vDateField', '.vTimeField'] },
        { resultTypes: ['violations'], rules: { 'color-contrast': { enabled: contrast } } });
    return violations.filter(rule => ['serious', 'critical'].includes(rule.impact)).map(rule =>
        `${rule.id}: ${rule.nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(' ')}`);
}"""
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
    """A page in a context of its own. `page.errors` are its uncaught exceptions, `page.console` its console errors.
    Nothing moves: without a GPU each frame of an animation is painted by the processor."""
    context = browser.new_context(base_url=site, **{"reduced_motion": "reduce", **options})
    if user is not None:
        context.add_cookies([{"name": "sessionid", "value": elsewhere(_session_of, user), "url": site}])
    page = context.new_page()
    page.set_default_timeout(seconds(20) * 1000)  # below the feed page's interval of 30 s: a lost hint is noticed
    page.errors, page.console = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda said: page.console.append(said.text) if _is_error(said) else None)
    return page


def page_of_process(browser: Any, site: str) -> Any:
    """A page of a site in another process, which imports litellm first."""
    page = new_page(browser, site)
    page.set_default_timeout(BOUND_S * 1000)
    return page


def log_in(page: Any, address: str, name: str, password: str) -> None:
    page.goto(address)
    page.fill("[name=username]", name)
    page.fill("[name=password]", password)
    page.click("[type=submit]")


def ask(page: Any, agent: str, text: str) -> None:
    """In a new conversation of the chat."""
    page.goto(f"/ravi/ui/chat/?agent={agent}")
    page.wait_for_selector("ravi-chat:defined")
    assert page.input_value("#agent") == agent
    page.fill("#text", text)
    page.press("#text", "Enter")


def answered(page: Any, text: str) -> None:
    page.wait_for_selector(f".answer .prose:has-text('{text}')")
    page.wait_for_selector("#status:text-is('Done')")


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


def looks(page: Any, *widths: int, part: str = "html") -> Iterator[tuple[str, int]]:
    """Show the page in both themes, at each width. `part` of it has no serious finding in either."""
    for scheme in ("light", "dark"):
        for width in widths:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate("document.getAnimations().forEach(change => change.finish())")
            yield scheme, width
        found = findings(page, part)
        assert not found, f"{scheme}: {found}"


def misplaced(page: Any) -> list[str]:
    """What lies over its neighbours, or sticks out of the window."""
    found: list[str] = page.evaluate(BOXES)
    return found


def findings(page: Any, part: str = "html", *, contrast: bool = True) -> list[str]:
    """What axe-core finds in the elements of a selector, by rule; only what is serious or critical. Django's own fields
    for a time have no labels: they are left out. `contrast`: the dearest rule."""
    said = list(page.console)
    page.evaluate(AXE)
    found: list[str] = page.evaluate(SERIOUS, [part, contrast])
    page.console[:] = said  # axe-core tries inline styles, which a policy refuses
    return found
