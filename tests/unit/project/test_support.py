"""Tests of the tests' support."""

from __future__ import annotations

import pytest

from tests.support import patience
from tests.support.required import missing


@pytest.mark.parametrize(
    ("required", "end"), [(None, pytest.skip.Exception), ("0", pytest.skip.Exception), ("1", pytest.fail.Exception)]
)
def test_a_missing_program_skips_a_test_or_fails_it_where_all_are_required(monkeypatch, required, end):
    monkeypatch.delenv("RAVI_REQUIRE_ALL", raising=False)
    if required is not None:
        monkeypatch.setenv("RAVI_REQUIRE_ALL", required)

    with pytest.raises(end, match="Chromium is missing: playwright install chromium"):
        missing("Chromium", "playwright install chromium")


@pytest.mark.parametrize("marked", [False, True])
def test_a_slow_machine_has_longer_bounds_and_timeouts(monkeypatch, request, marked):
    import pytest_timeout

    timeouts = []
    monkeypatch.setattr(patience, "SLOW", 3.0)
    monkeypatch.setattr(
        pytest_timeout, "pytest_timeout_set_timer", lambda item, settings: timeouts.append(settings.timeout)
    )
    if marked:
        request.node.add_marker(pytest.mark.timeout(7))
    settings = pytest_timeout._get_item_settings(request.node)

    request.config.hook.pytest_timeout_set_timer(item=request.node, settings=settings)

    assert timeouts == [21.0 if marked else 3 * settings.timeout]
    assert patience.seconds(20) == 60.0
