"""`make test-sites`: a site of each row of the table installs the app, uses it, and takes it out again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import psycopg
import pytest

from project.process import wait_until
from project.services import free_port, port_is_free
from tests.acceptance.sites.made import BEGIN, INSTALL, LEAVE, Site, python_of
from tests.acceptance.sites.table import ROWS, Row
from tests.support import forks
from tests.support.admin_walk import log_in, walk
from tests.support.browser import new_page
from tests.support.patience import BOUND_S
from tests.support.pgbouncer import pgbouncer

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]  # the first time an environment is installed
SERVERS = {
    "runserver": ("manage.py", "runserver", "--noreload", "{host}:{port}"),
    "gunicorn": ("-m", "gunicorn", "mysite.wsgi", "-w", "1", "-b", "{host}:{port}"),
    "uvicorn": ("-m", "uvicorn", "mysite.asgi:application", "--host", "{host}", "--port", "{port}", "--lifespan=off"),
}
WORKER = ("-m", "celery", "-A", "mysite", "worker", "--loglevel", "INFO", "-P")
SILENT = "System check identified no issues (0 silenced)."


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_site_takes_the_app_in_and_out(row, tmp_path, chromium, capsys) -> None:
    begun, verdict = cpu_s(), "failed"
    try:
        with ExitStack() as stack:
            site = made(row, tmp_path, stack)
            site.run("-c", BEGIN, settings="mysite.before")
            installs(site)
            with running(site, row.server) as url, chromium() as browser:
                page = new_page(browser, url)
                log_in(page, url, "root@example.com", "root")
                if row.server == "gunicorn":  # Chromium reports the inbox's socket, which it does not have
                    page.route_web_socket("**/ws/ravi/requests/", lambda socket: None)
                runs_and_asks(site, url, page)
                if row.csp:  # the same policy as of test_admin_themes, which opens all pages under the other Django
                    assert walk(page, url, looks=()) == []
            is_left_as_before(site)
        verdict = "ok"
    finally:
        with capsys.disabled():
            print(f"\n{row.name}: {verdict}, {cpu_s() - begun:.0f} s of CPU", flush=True)
        if verdict == "failed":
            print(*(f"{log.name}: {log.read_text()[-3000:]}" for log in tmp_path.glob("*.log")), sep="\n")


# ------------------------------------------------------------------------------------------------------- the steps


def made(row: Row, folder: Path, stack: ExitStack) -> Site:
    redis = urlsplit(os.environ["REDIS_URL"])._replace(path=f"/{ROWS.index(row) + 1}").geturl()
    databases = {"default": default(row, folder, stack)}
    if row.replica:
        databases["replica"] = {**databases["default"], "NAME": replica_of(row), "OPTIONS": {}}
    python = python_of(row.django) if row.django else ""
    return Site(row, folder, python=python, databases=databases, redis=redis)


def default(row: Row, folder: Path, stack: ExitStack) -> dict[str, Any]:
    if row.database == "sqlite":
        options = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3"), "OPTIONS": options}
    name = f"site_{row.name}"
    execute(f"CREATE DATABASE {name} TEMPLATE template0")
    stack.callback(execute, f"DROP DATABASE {name} WITH (FORCE)")
    server = urlsplit(os.environ["RAVI_TEST_POSTGRES"])
    database: dict[str, Any] = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": server.username}
    database |= {"PASSWORD": server.password, "HOST": server.hostname, "PORT": str(server.port), "OPTIONS": {}}
    if row.database == "pool":
        database["OPTIONS"] = {"pool": True}
    if row.database == "pgbouncer":
        database |= {"PORT": str(stack.enter_context(pgbouncer(database))), "DISABLE_SERVER_SIDE_CURSORS": True}
    return database


def replica_of(row: Row) -> str:
    return f"site_{row.name}_replica"


def execute(sql: str) -> None:
    with psycopg.connect(os.environ["RAVI_TEST_POSTGRES"], autocommit=True) as connection:
        connection.execute(sql)


def installs(site: Site) -> None:
    assert site.run("-c", INSTALL).strip() == SILENT
    if site.row.replica:
        execute(f"CREATE DATABASE {replica_of(site.row)} TEMPLATE site_{site.row.name}")


def runs_and_asks(site: Site, url: str, page: Any) -> None:
    """A customer starts a run over REST, and a member of the staff approves its call in the admin."""
    mount = site.row.mount.replace("<str:version>", "v1")
    with httpx.Client(
        base_url=f"{url}/{mount}", auth=("ada@example.com", "ada"), timeout=BOUND_S, trust_env=False
    ) as web:
        submitted = web.post("runs/", json={"agent": "react/shop", "input": "Send an invoice of 100 to ACME"})
        assert submitted.status_code == 201, submitted.text
        run = f"runs/{submitted.json()['id']}/"
        assert wait_until(lambda: (web.get(run).json()["waiting_on"] or {}).get("kind") == "request", BOUND_S, poll=0.2)

        page.goto(f"{url}/admin/ravi/humanrequest/")
        page.click("#result_list tbody a")
        page.click("button[value=approve]")
        page.wait_for_url(f"{url}/admin/ravi/humanrequest/**")

        assert wait_until(lambda: web.get(run).json()["status"] == "completed", BOUND_S, poll=0.2), web.get(run).text
        assert "An invoice of 100 went to ACME." in web.get(run).json()["output"]
        as_page = {"Accept": "application/json"}  # its last frame comes after the run's last commit
        assert wait_until(lambda: web.get(f"{run}events/", headers=as_page).json()["done"], BOUND_S, poll=0.2)
    if site.row.has_broker:
        other = site.log("other").read_text()
        assert "Task ravi." not in other and "ERROR" not in other, other


def is_left_as_before(site: Site) -> None:
    site.run("manage.py", "migrate", "ravi", "zero", "-v0")
    assert site.run("-c", LEAVE, settings="mysite.before").startswith(SILENT)  # a theme logs what it misses


# ------------------------------------------------------------------------------------------------------- processes


@contextmanager
def running(site: Site, server: str) -> Iterator[str]:
    """All processes of the site."""
    workers = {}
    if site.row.has_broker:
        workers["worker"] = (*WORKER, "threads", "-c", "10", "-Q", "ravi")
        workers["other"] = (*WORKER, site.row.workers, "-c", "1")  # Celery's default queue
    with ExitStack() as stack:
        for name, command in workers.items():
            stack.enter_context(stopped(site.start(name, *command, "-n", name)))
        yield stack.enter_context(serving(site, server))


@contextmanager
def serving(site: Site, server: str) -> Iterator[str]:
    host, port = "127.0.0.1", free_port()
    command = (part.format(host=host, port=port) for part in SERVERS[server])
    with stopped(site.start("web", *command)) as process:
        wait_until(lambda: not port_is_free(host, port) or process.poll() is not None, BOUND_S)
        assert process.poll() is None, site.log("web").read_text()
        yield f"http://{host}:{port}"


@contextmanager
def stopped(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s() -> float:
    """Of this process, the tests' fork server, and all that they have started."""
    server = str(forks._forks().path)
    tops = [one for one in psutil.process_iter(["cmdline"]) if server in (one.info["cmdline"] or ())]
    total = 0.0
    for top in (psutil.Process(), *tops):
        with suppress(psutil.NoSuchProcess):
            for process in (top, *top.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += sum(process.cpu_times()[:4])  # user, system, and both of its ended children
    return total
