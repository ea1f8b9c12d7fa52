"""`manage.py ravi_worker` and `ravi_sweep`."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from project.process import wait_until
from project.services import Postgres
from tests.support import template
from tests.support.patience import BOUND_S

pytestmark = [pytest.mark.timeout(180), pytest.mark.full]


@pytest.mark.gate
def test_a_worker_finds_runs_that_other_processes_submit_and_stops_when_asked(inline_site) -> None:
    early = inline_site.submit("react/assistant", "What is 6 * 7?")
    with inline_site.managed("ravi_worker") as worker:
        assert worker.says("Ctrl-C drains"), worker.text
        first_line = worker.text.splitlines()[0]
        late = inline_site.submit("react/assistant", "What is 6 * 8?")

        done = [wait_until(lambda run=run: inline_site.run(run)[0] == "completed", BOUND_S) for run in (early, late)]
        assert done == [True, True], worker.text
        worker.process.terminate()

        assert worker.process.wait(BOUND_S) == 0, worker.text
    assert "; agents: information/business, " in first_line
    assert "orchestrator/team, personal_feed/reader, plain/drifted, plain/quiet, react/assistant" in first_line
    draining, stopped = worker.text.splitlines()[1:]
    # A run whose end is committed is at work until its frames are sent.
    assert re.fullmatch(r"ravi_worker: draining (0 runs|1 run), for up to 1 s", draining)
    assert stopped == "ravi_worker: stopped"
    assert ("42" in inline_site.run(early)[1], "48" in inline_site.run(late)[1]) == (True, True)
    assert inline_site.rows("SELECT name FROM ravi_workerprocess") == []


def test_an_asked_worker_gives_open_runs_back(inline_site) -> None:
    sent = signal.SIGINT if inline_site.database.startswith("sqlite") else signal.SIGTERM
    inline_site.empty()
    run_id = inline_site.submit("react/slow")
    with inline_site.managed("ravi_worker") as worker:
        held = "SELECT runs FROM ravi_workerprocess"
        assert wait_until(lambda: inline_site.rows(held) == [(1,)], BOUND_S), worker.text

        worker.process.send_signal(sent)

        assert worker.process.wait(BOUND_S) == 0, worker.text
        assert "draining 1 run, for up to 1 s" in worker.text
    assert inline_site.run(run_id) == ("pending", None, "")
    inline_site.empty()


def test_a_second_signal_ends_it_at_once(sqlite_site) -> None:
    site = sqlite_site.with_(COMMAND_SITE_DRAIN_S="100")
    site.empty()
    site.submit("react/told")
    with site.managed("ravi_worker") as worker:
        assert worker.says("the model is asked"), worker.text
        worker.process.terminate()
        assert worker.says("draining"), worker.text

        worker.process.terminate()

        assert worker.process.wait(BOUND_S) == -signal.SIGTERM
    site.empty()


@pytest.mark.timeout(300)
def test_it_ends_while_the_database_hangs(postgres_site, tmp_path_factory) -> None:
    """Six tools end at once: their results wait for a shared commit."""
    with TemporaryDirectory() as folder, Postgres(template.cluster(Path(folder) / "postgresql"), fast=True) as server:
        gate = Path(folder) / "gate"
        names = {"DATABASE_URL": server.url, "COMMAND_SITE_GATE": str(gate), "COMMAND_SITE_HEARTBEAT_S": "10"}
        site = postgres_site.with_(RAVI_ENGINE="inline", **names)
        site.submit("react/parallel")
        with site.managed("ravi_worker") as worker:
            assert wait_until(lambda: worker.text.count("a tool is called") == 6, BOUND_S), worker.text
            postmaster = psutil.Process(server.pid)
            stopped = [postmaster, *postmaster.children(recursive=True)]
            try:
                for process in stopped:
                    process.suspend()
                gate.touch()
                worker.process.terminate()

                assert worker.process.wait(2 * BOUND_S) == 0, worker.text
            finally:
                for process in stopped:
                    with suppress(psutil.NoSuchProcess):
                        process.resume()
            assert "ravi_worker: stopped" in worker.text


def test_a_worker_without_tables_says_what_to_do(sqlite_site, tmp_path) -> None:
    done = sqlite_site.with_(DATABASE_URL=f"sqlite:///{tmp_path}/new.sqlite3").manage("ravi_worker")

    assert done.returncode == 1
    assert "manage.py migrate" in done.stderr


def test_a_sweep_says_what_it_did(postgres_site) -> None:
    postgres_site.empty()
    postgres_site.submit("react/assistant")

    first, second = postgres_site.manage("ravi_sweep"), postgres_site.manage("ravi_sweep")

    assert (first.returncode, first.stdout) == (0, "ravi_sweep: hinted=1 promoted=0 published=0\n"), first.stderr
    assert re.fullmatch(r"ravi_sweep: hinted=[01] promoted=0 published=0\n", second.stdout)


def test_a_sweep_of_an_inline_site_begins_nothing(sqlite_site) -> None:
    sqlite_site.empty()
    run_id = sqlite_site.submit("react/assistant")

    done = sqlite_site.manage("ravi_sweep")

    assert "hinted=1" in done.stdout
    assert "manage.py ravi_worker executes them" in done.stdout
    assert sqlite_site.run(run_id)[0] == "pending"
