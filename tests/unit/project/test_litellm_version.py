"""A site is told that its litellm is newer than the last tested one."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks

from ravi_django.calls.llm.loading import LAST_TESTED

ROOT = Path(__file__).parents[3]


@pytest.mark.django_db
def test_a_litellm_newer_than_the_last_tested_one_is_a_warning(monkeypatch: Any) -> None:
    assert f"litellm=={LAST_TESTED}\n" in (ROOT / "requirements.txt").read_text()
    major, minor, patch = map(int, LAST_TESTED.split("."))
    for version, is_newer in {
        LAST_TESTED: False,
        f"{major}.{minor}.{patch + 1}": True,
        f"{major}.{minor + 1}.0rc1": True,
        f"{major}.{minor - 1}.99": False,
    }.items():
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        found = [one for one in run_checks(tags=["ravi"]) if one.id == "ravi.W015"]
        assert bool(found) is is_newer, version
        assert not found or (version in found[0].msg and f"=={LAST_TESTED}" in (found[0].hint or ""))
