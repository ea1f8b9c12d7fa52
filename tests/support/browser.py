"""Chromium for the tests of pages."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Any

import pytest


def launch(playwright: Any) -> Any:
    """Playwright's own Chromium, or the system's; without one the test is skipped."""
    error = pytest.importorskip("playwright.sync_api").Error
    paths = [None, *filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))]
    for path in paths:
        with suppress(error):
            return playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
    return pytest.skip("there is no Chromium: playwright install chromium")
