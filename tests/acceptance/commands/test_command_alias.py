"""A site whose rows are in another database than `default`, which is empty."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request):
    """`default` raises at each use."""
    found = request.getfixturevalue("sqlite_site" if request.param == "sqlite" else "postgres_site")
    return found.with_(RAVI_ENGINE="inline", RAVI_TEST_ALIAS="main")


def test_every_statement_goes_to_the_alias_of_the_setting(site) -> None:
    ran = site.manage("ravi_run", "plain/quiet", "hi", "--json")
    checked = site.manage("check")
    found = site.manage("ravi_doctor")
    pruned = site.manage("ravi_prune", "--older-than", "0d")

    assert '"status":"completed"' in ran.stdout.replace(" ", ""), ran.stderr
    assert checked.returncode == 0, checked.stderr
    assert "ok       migrations: all applied" in found.stdout, found.stderr
    assert pruned.returncode == 0, pruned.stderr
