"""Tests of the tests' support."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.support import durations, patience
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


@pytest.fixture
def record(monkeypatch, tmp_path):
    path = tmp_path / "durations.json"
    path.write_text(json.dumps({"tests/conftest.py": 9.0, "tests/mutants.py": 1.0, "tests/gone.py": 5.0}))
    monkeypatch.setattr(durations, "RECORD", path)
    return path


def test_the_longest_files_go_first_and_new_ones_are_average(record):
    ids = ["tests/mutants.py::a", "tests/new.py::a", "tests/new.py::b", "tests/conftest.py::a"]

    found = durations.longest_first([SimpleNamespace(nodeid=nodeid) for nodeid in ids])

    assert [item.nodeid for item in found] == [ids[3], ids[1], ids[2], ids[0]]


def test_what_ran_is_recorded_anew_and_what_is_gone_is_left_out(record):
    recorder = durations.Recorder()
    for seconds in (1.25, 2.0):
        recorder.pytest_runtest_logreport(SimpleNamespace(nodeid="tests/mutants.py::a", duration=seconds))

    recorder.pytest_sessionfinish()

    assert json.loads(record.read_text()) == {"tests/conftest.py": 9.0, "tests/mutants.py": 3.2}
