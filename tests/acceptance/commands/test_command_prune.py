"""`manage.py ravi_prune`, on SQLite and on PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytestmark = [pytest.mark.timeout(180), pytest.mark.full]


@pytest.fixture
def site(inline_site) -> Iterator:
    inline_site.empty()
    yield inline_site
    inline_site.empty()


def grown_old(site, run_id: str) -> None:
    """Ended long ago."""
    site.python(
        "from datetime import timedelta\n"
        "from django.utils import timezone\n"
        "from ravi_django.models import Run\n"
        f"Run.objects.filter(id={run_id!r}).update(finished_at=timezone.now() - timedelta(days=40))"
    )


def rows(site, table: str) -> int:
    return int(site.rows(f"SELECT count(*) FROM {table}")[0][0])


def counts(text: str) -> dict[str, int]:
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", text.splitlines()[-1])}


def conversation(site) -> str:
    """A run that has ended, and its id."""
    done = site.manage("ravi_run", "react/assistant", "What is 6 * 7?", "--json")
    assert done.returncode == 0, done.stderr
    return str(site.rows("SELECT id FROM ravi_run ORDER BY id DESC LIMIT 1")[0][0])


def test_old_runs_lose_their_journals_and_young_and_live_ones_do_not(site) -> None:
    old = conversation(site)
    turns = rows(site, "ravi_turn")
    old_rows = rows(site, "ravi_journalentry")
    grown_old(site, old)
    conversation(site)
    site.submit("react/slow")
    kept = rows(site, "ravi_journalentry") - old_rows

    dry = site.manage("ravi_prune", "--older-than", "30d", "--dry-run")
    assert rows(site, "ravi_journalentry") == old_rows + kept
    done = site.manage("ravi_prune", "--older-than", "30d")

    assert (dry.returncode, done.returncode) == (0, 0), dry.stderr + done.stderr
    assert dry.stdout.startswith("ravi_prune: would remove journal=")
    assert counts(done.stdout)["journal"] == counts(dry.stdout)["journal"] == old_rows > 3
    assert rows(site, "ravi_journalentry") == kept
    assert (rows(site, "ravi_run"), rows(site, "ravi_turn")) == (3, 2 * turns)
    assert "42" in site.run(old)[1]


def test_without_a_duration_the_setting_says_what_goes(site) -> None:
    grown_old(site, conversation(site))
    before = rows(site, "ravi_journalentry")

    silent = site.manage("ravi_prune")
    assert rows(site, "ravi_journalentry") == before
    told = site.with_(RAVI_RETENTION="30").manage("ravi_prune")

    assert (silent.returncode, told.returncode) == (0, 0), silent.stderr + told.stderr
    assert "RAVI['RETENTION'] keeps everything" in silent.stdout
    assert "keeps everything" not in told.stdout
    assert counts(told.stdout)["journal"] == before
    assert rows(site, "ravi_journalentry") == 0


def test_what_is_no_duration_is_said(sqlite_site) -> None:
    done = sqlite_site.manage("ravi_prune", "--older-than", "30")

    assert done.returncode == 2
    assert "'30' is not a duration such as 30d" in done.stderr
    assert "Traceback" not in done.stderr
