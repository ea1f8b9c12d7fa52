"""Programs that some tests need and a machine may lack."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(program: str, hint: str) -> NoReturn:
    """Skip the test. Fail it where RAVI_REQUIRE_ALL=1 is set, as in CI."""
    __tracebackhide__ = True
    end = pytest.fail if os.environ.get("RAVI_REQUIRE_ALL") == "1" else pytest.skip
    end(f"{program} is missing: {hint}")
