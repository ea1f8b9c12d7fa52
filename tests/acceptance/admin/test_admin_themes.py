"""Every page of ours in the admin, stock and with themes, light on a desktop and dark on a phone. Needs a Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin_walk import LOOKS, RUN, SWITCH, log_in, walk
from tests.support.browser import findings
from tests.support.themed_site import CUSTOMER, themed_site

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.full, pytest.mark.timeout(300)]


@pytest.mark.parametrize("theme", ["stock", "unfold", "jazzmin"])
def test_pages_can_be_read_and_used(theme: str, tmp_path: Path, new_page: Callable[..., Any]) -> None:
    with themed_site(theme, tmp_path) as url:
        page = new_page(url)
        log_in(page, url, "root", "root")

        # Themes restyle Django's own parts: the stock admin has all looks, and a theme the one that most breaks in.
        faults = walk(page, url, axe=True) if theme == "stock" else walk(page, url, looks=LOOKS[1:])

        assert faults == [], "\n".join(faults)
        approve_on_a_phone(page)
        open_the_panel(page)


def open_the_panel(page: Any) -> None:
    page.goto("/admin/ravi/run/")
    page.click("ravi-panel #open")
    page.wait_for_selector("ravi-panel ravi-chat:defined")
    page.wait_for_selector("#place:has-text('About: ')")
    for scheme, width in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.evaluate(SWITCH, scheme)
        page.wait_for_selector(f"ravi-chat[data-theme={scheme}]")
        assert findings(page, "ravi-panel") == []
    assert page.errors == []


def approve_on_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto("/admin/ravi/humanrequest/")
    row = page.locator("#result_list tbody tr").first
    assert row.get_by_text("high").is_visible() and CUSTOMER in row.inner_text()
    row.locator("[name=_selected_action]").check()
    page.select_option("select[name=action]", "approve_selected")
    page.click(RUN)
    page.locator(".ravi-risk-high").wait_for()
    assert CUSTOMER in page.inner_text(".ravi-bulk")
    page.click("button[value=approve]")
    page.get_by_text("Approved: 1 of 1").wait_for()
