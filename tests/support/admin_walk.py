"""A walk through our pages of a site's admin in a browser, which lists what is wrong with them.

`log_in(page, url, name, password)`, then `walk(page, url)`: for a site of any kind, with any rows, theme and users. A
superuser sees most. Pages of one shape, as of two runs, are visited once: light on a desktop, dark on a phone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.browser import findings
from tests.support.patience import SLOW

LOOKS = (("light", 1280), ("dark", 390))
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+")
CLICK_MS = 3000 * SLOW
RUN = ".actions button[type=submit]:visible"  # an action
NOT_OURS = ("delete", "history")  # the theme's own pages
OURS = re.compile(r'class="([^"]* )?ravi[ "-]|name="_save"')  # what a browser looks at; of other pages, the status
SWITCH = """scheme => {  // themes that look at what is preferred only when a page loads
  document.documentElement.classList.toggle('dark', scheme === 'dark');
  if (document.documentElement.dataset.bsTheme) document.documentElement.dataset.bsTheme = scheme;
}"""
SETTLED = """() => {
  document.getAnimations().forEach(change => change.finish());
  return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
FAULTS = Path(__file__).with_name("admin_faults.js").read_text()


def log_in(page: Any, url: str, name: str, password: str) -> None:
    page.goto(f"{url}/admin/login/?next=/admin/ravi/")
    page.fill("[name=username]", name)
    page.fill("[name=password]", password)
    page.press("[name=password]", "Enter")
    page.wait_for_url(f"{url}/admin/ravi/")


Looks = Sequence[tuple[str, int]]


def walk(page: Any, url: str, *, admin: str = "/admin/ravi/", looks: Looks = LOOKS, axe: bool = False) -> list[str]:
    """What is wrong: `page, look: fault`. `page` comes from tests.support.browser.new_page, logged in. Without looks
    it lists pages that do not open, buttons that cannot be pressed, and errors in the console. `axe` also lists
    what axe-core finds in our parts of each page, in its first look: contrast is looked at in each."""
    found: list[str] = []
    seen: set[str] = set()
    waiting = [admin]
    page.console.clear()
    while waiting:
        address = waiting.pop(0)
        response = page.request.get(f"{url}{address}")
        html, shape = response.text(), ID.sub("*", address.removeprefix(admin))
        if response.url != f"{url}{address}":  # elsewhere
            continue
        if response.status != 200:
            found.append(f"{shape}: {response.status}")
        elif OURS.search(html):
            page.goto(f"{url}{address}")
            found += _look(page, shape, looks, axe) + _press(page, shape, looks)
        for link in re.findall(rf'href="({admin}[^"?#]+)', html):
            if not set(link.split("/")) & set(NOT_OURS) and ID.sub("*", link) not in seen:
                seen.add(ID.sub("*", link))
                waiting.append(link)
    return found


def _look(page: Any, name: str, looks: Looks, axe: bool = False) -> list[str]:
    found = []
    for scheme, width in looks:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.evaluate(SWITCH, scheme)
        page.evaluate(SETTLED)
        for _ in range(3):  # a busy machine paints a change late
            if not (faults := page.evaluate(FAULTS)):
                break
            page.wait_for_timeout(500)
        if axe and scheme == looks[0][0] and page.locator(".ravi").count():
            faults += findings(page, ".ravi", contrast=False)
        found += [f"{name}, {scheme} {width}: {fault}" for fault in faults]
    found += [f"{name}: {fault}" for fault in (*page.errors, *page.console)]
    page.errors.clear()
    page.console.clear()
    return found


def _press(page: Any, shape: str, looks: Looks) -> list[str]:
    """The buttons that lead to pages of ours and change nothing: preview, and an action on a list's first row."""
    from playwright.sync_api import Error

    try:
        if shape.endswith("/change/") and page.locator("[name=_preview]").count():
            return _click(page, "[name=_preview]", f"{shape} preview", looks)
        if page.locator("select[name=action]").count() and page.locator("#result_list tbody tr").count():
            page.locator("input[name=_selected_action]").first.check(timeout=CLICK_MS)
            page.select_option("select[name=action]", index=1, timeout=CLICK_MS)
            page.click(RUN, trial=True, timeout=CLICK_MS)
            return _click(page, RUN, f"{shape} action", looks) if shape == "humanrequest/" else []
    except Error as error:
        return [f"{shape}: {error.message[:800]}"]
    return []


def _click(page: Any, button: str, name: str, looks: Looks) -> list[str]:
    with page.expect_navigation():
        page.click(button, timeout=CLICK_MS)
    return _look(page, name, looks)
