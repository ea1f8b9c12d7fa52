"""The limits of tools are settings; one that would stop every tool is reported."""

from __future__ import annotations

import pytest

from ravi_django.checks import check_settings


@pytest.mark.parametrize("value", [0, -1, None, "many", True])
@pytest.mark.parametrize("name", ["MAX_TOOL_S", "MAX_TOOL_BYTES", "MAX_BLOB_BYTES", "MAX_RESULT_BYTES", "TOOL_THREADS"])
def test_a_limit_that_is_no_number_above_0_is_reported(settings, name, value):
    settings.RAVI = {**settings.RAVI, name: value}

    found = [problem for problem in check_settings() if problem.id == "ravi.E009"]

    assert [problem.msg for problem in found] == [f"RAVI[{name!r}] is {value!r}."]


def test_the_defaults_are_fine():
    assert not [problem for problem in check_settings() if problem.id == "ravi.E009"]
