"""`make demo`: every process of the site on one machine, started in order, kept alive, and stopped together.

    python -m project.demo            run until Ctrl-C or SIGTERM
    python -m project.demo --check    run one conversation, say whether it went well, and stop

Environment: HOST (127.0.0.1), PORT (8000); DATABASE_URL and REDIS_URL are used instead of servers of our own; MODEL
is "local" for a small real model on this machine (the extra `local`), or any name that RAVI_MODEL may have.
Data, logs and pid files are in .demo/<port>/.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import psycopg
import psycopg.sql

from project.demo_check import health
from project.feed_server import FeedServer
from project.local_model import LocalModel
from project.process import Child, ProcessError
from project.services import Postgres, Service, Valkey, port_is_free

BASE_DIR = Path(__file__).resolve().parent.parent
MIGRATIONS = {"ravi": BASE_DIR / "ravi_django" / "migrations", "project": BASE_DIR / "project" / "migrations"}
HEALTHY_TIMEOUT_S = 60.0
LOCAL = "local"
RESTARTS, RESTART_WINDOW_S = 5, 60.0  # so many in so many seconds, then give up


class DemoError(Exception):
    """Why the demo cannot go on, in words for the person who started it."""


class Stopped(Exception):
    """Ctrl-C, SIGTERM or SIGHUP."""


def set_aside_unknown(url: str) -> str | None:
    """Rename a database whose recorded migrations this version does not know, and make an empty one in its place.
    Returns the name under which it is kept; None when all is known."""
    known = {(app, file.stem) for app, folder in MIGRATIONS.items() for file in folder.glob("0*.py")}
    with psycopg.connect(url) as database:
        if database.execute("SELECT to_regclass('django_migrations')").fetchone() == (None,):
            return None
        found = database.execute("SELECT app, name FROM django_migrations WHERE app = ANY(%s)", [list(MIGRATIONS)])
        if set(found) <= known:
            return None
    kept = f"kept_{int(time.time())}"
    name = psycopg.sql.Identifier(urlsplit(url).path[1:])
    with psycopg.connect(urlsplit(url)._replace(path="/template1").geturl(), autocommit=True) as server:
        server.execute(psycopg.sql.SQL("ALTER DATABASE {} RENAME TO {}").format(name, psycopg.sql.Identifier(kept)))
        server.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(name))
    return kept


class Demo:
    def __init__(self, host: str, port: int, model: str = "") -> None:
        self.host, self.port = host, port
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        self.address = f"http://{f'[{local}]' if ':' in local else local}:{port}"
        self.model = model  # "local", or a name for RAVI_MODEL; empty leaves the environment's
        self.folder = BASE_DIR / ".demo" / str(port)
        self.logs = self.folder / "logs"
        self.env = {
            "HOST": host,
            "PORT": str(port),
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "DEMO_WORKER": str(self.folder / "pids" / "worker"),
        }
        self.running: list[Service | Child] = []  # in the order of their start
        self.ends: dict[str, list[float]] = {}  # when each ended by itself
        self.stopping = False

    def run(self, *, check: bool) -> None:
        """Returns when stopped or checked. Raises DemoError when it cannot go on."""
        for wanted in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(wanted, self._on_signal)
        with self._lock():
            try:
                self._start()
                if check:
                    self._check()
                else:
                    self._serve()
            finally:
                self.stopping = True
                self._stop()

    def _start(self) -> None:
        say("ravi_django demo")
        self._fresh_logs()
        self._end_leftovers()
        self._require_port()
        self._start_servers()
        self._write_env()
        self._manage("migrate", "--no-input")
        self._manage("seed_demo")
        say_service("database", "migrated; users are there")
        for child in self._site():
            self.running.append(child)
            child.start()
            say_service(child.name, self.address if child.name == "web" else f"pid {child.pid}")

    def _fresh_logs(self) -> None:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            for old in self.logs.iterdir():
                old.unlink()
        except PermissionError as error:
            raise DemoError(
                f"{error}: another user ran a demo here; choose another PORT, or remove {self.folder}"
            ) from None

    def _serve(self) -> None:
        self._wait_healthy()
        named = self.env.get("RAVI_MODEL") or os.environ.get("RAVI_MODEL")
        model = named or "rehearsal (built in, offline; set RAVI_MODEL, or MODEL=local, for a real one)"
        say(f"Open {self.address}/ and log in as demo / demo.")
        say(f"Approve the invoice that it asks for: {self.address}/admin/, in another browser, as staff / staff.")
        say(f"See everything: {self.address}/admin/ as admin / admin.")
        say(f"News: {self.address}/feed/, and beside it in another browser as ada / ada.")
        say(f"Model: {model}. Logs: {self._shown(self.logs)}. Ctrl-C stops everything.")
        while True:
            self._tick()

    def _check(self) -> None:
        self._wait_healthy()
        any_answer = ["--any-answer"] if self.model == LOCAL else []  # it can chat, and no more
        checker = self._child("check", "-m", "project.demo_check", self.address, *any_answer)
        self.running.append(checker)
        checker.start()
        while checker.running:
            self._tick(except_for=checker)
        say(checker.tail(50))
        if checker.returncode != 0:
            raise DemoError(f"the check failed\n{self._tails()}")

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + HEALTHY_TIMEOUT_S
        while not health(self.address):
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{self.address}/ravi/health/ was not healthy within {HEALTHY_TIMEOUT_S:.0f} s\n{self._tails()}"
                )
            for _ in range(5):  # half a second between two questions
                self._tick()

    def _tick(self, except_for: Child | None = None) -> None:
        """A moment's rest, and a look at everything that should be running."""
        if self.stopping:
            raise Stopped
        time.sleep(0.1)
        for part in self.running:
            if not part.running and part is not except_for:
                self._start_again(part)

    def _start_again(self, part: Service | Child) -> None:
        now = time.monotonic()
        ends = self.ends[part.name] = [t for t in self.ends.get(part.name, []) if now - t < RESTART_WINDOW_S] + [now]
        say_service(part.name, f"ended ({_in_words(part.returncode)})")
        if len(ends) > RESTARTS:
            raise DemoError(f"{part.name} ended {len(ends)} times within {RESTART_WINDOW_S:.0f} s\n{part.tail()}")
        part.start()
        say_service(part.name, f"started again, pid {part.pid}")

    def _stop(self) -> None:
        for part in self.running:
            if isinstance(part, Child):
                part.ask_to_stop()  # together, so that their patience does not add up
        for part in reversed(self.running):
            part.stop()

    def _start_servers(self) -> None:
        options = {"DATABASE_URL": Postgres, "REDIS_URL": Valkey}
        for variable, service in options.items():
            if os.environ.get(variable):
                say_service("database" if service is Postgres else "redis", f"given by {variable}")
                continue
            server = service(self.folder / service.name, log=self.logs / f"{service.name}.log")
            self.running.append(server)
            server.start()
            self.env[variable] = server.url
            say_service(server.name, f"127.0.0.1:{server.port}, data in {self._shown(server.data_dir)}")
            if service is Postgres and (kept := set_aside_unknown(server.url)):
                say_service(server.name, f"its data is of another version: kept as database {kept}, begun anew")
        feeds = FeedServer(self.folder / FeedServer.name, log=self.logs / f"{FeedServer.name}.log")
        self.running.append(feeds)
        feeds.start()
        self.env["FEED_SERVER_URL"] = feeds.url
        say_service(feeds.name, f"127.0.0.1:{feeds.port}, made-up news")
        self._start_model()

    def _start_model(self) -> None:
        if self.model != LOCAL:
            self.env |= {"RAVI_MODEL": self.model} if self.model else {}
            return
        model = LocalModel(self.folder / LocalModel.name, log=self.logs / f"{LocalModel.name}.log")
        self.running.append(model)
        model.start()
        self.env |= model.env
        say_service(model.name, f"127.0.0.1:{model.port}, {model.env['RAVI_MODEL']}")

    def _site(self) -> list[Child]:
        """The processes that any deployment of a site with ravi_django has."""
        schedule = self.folder / "celerybeat-schedule"
        for stale in self.folder.glob(f"{schedule.name}*"):
            stale.unlink()
        celery = ("-m", "celery", "-A", "project")
        listen = (
            "--host",
            self.host,
            "--port",
            str(self.port),
            "--lifespan",
            "off",
            "--timeout-graceful-shutdown",
            "3",
        )
        return [
            self._child("web", "-m", "uvicorn", "project.asgi:application", *listen),
            self._child("worker", *celery, "worker", "-P", "threads", "-c", "200", "-Q", "ravi", "--loglevel", "INFO"),
            self._child("beat", *celery, "beat", "--schedule", str(schedule), "--pidfile=", "--loglevel", "INFO"),
        ]

    def _child(self, name: str, *arguments: str) -> Child:
        return Child(
            name,
            [sys.executable, *arguments],
            log=self.logs / f"{name}.log",
            pid_file=self.folder / "pids" / name,
            env=self.env,
            cwd=BASE_DIR,
        )

    def _manage(self, command: str, *arguments: str) -> None:
        child = self._child(command, "manage.py", command, *arguments)
        self.running.append(child)
        child.start()
        while child.running:
            self._tick(except_for=child)
        self.running.remove(child)
        if child.returncode != 0:
            raise DemoError(f"manage.py {command} failed\n{child.tail(30)}")

    def _end_leftovers(self) -> None:
        """What a killed demo on this port left, where the kernel did not end it: before the port is looked at."""
        for child in self._site():
            child.end_leftover()

    def _require_port(self) -> None:
        try:
            free = port_is_free(self.host, self.port)
        except OSError as error:
            raise DemoError(
                f"cannot listen on {self.host}:{self.port}: {error}; choose others with HOST= and PORT="
            ) from error
        if not free:
            raise DemoError(f"port {self.port} on {self.host} is taken; choose another: make demo PORT={self.port + 1}")

    def _write_env(self) -> None:
        """Secrets for our children, and a file for a person's own shell beside them."""
        key = self.folder / "secret_key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_text(secrets.token_urlsafe(48))
        self.env.setdefault("SECRET_KEY", os.environ.get("SECRET_KEY") or key.read_text())
        shown = self.folder / "env"
        shown.touch(mode=0o600)
        given = {name: os.environ[name] for name in ("DATABASE_URL", "REDIS_URL") if os.environ.get(name)}
        lines = (f"export {name}={shlex.quote(value)}\n" for name, value in {**self.env, **given}.items())
        shown.write_text("# . this file, and manage.py works on the running demo\n" + "".join(lines))

    def _lock(self) -> IO[str]:
        """Held while we run, let go by the kernel however we end: tells a running demo from a killed one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = (self.folder / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise DemoError(
                f"another demo runs on port {self.port}; stop it, or choose: make demo PORT={self.port + 1}"
            ) from None
        return lock

    def _on_signal(self, *_: object) -> None:
        self.stopping = True

    def _tails(self) -> str:
        return "\n".join(f"--- {part.name}\n{part.tail()}" for part in self.running)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(BASE_DIR) if path.is_relative_to(BASE_DIR) else path)


def say(text: str) -> None:
    print(text, flush=True)


def say_service(name: str, text: str) -> None:
    say(f"  {name:<10}  {text}")


def _in_words(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return signal.Signals(-returncode).name
    return f"exit status {returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m project.demo", description="The demo site and all its services.")
    parser.add_argument("--check", action="store_true", help="run one conversation, then stop; 0 when it went well")
    options = parser.parse_args()
    port = os.environ.get("PORT") or "8000"
    if not (port.isdecimal() and 0 < int(port) < 65536):
        parser.error(f"PORT is a number from 1 to 65535, not {port!r}")
    try:
        model = os.environ.get("MODEL", "").strip()
        Demo(os.environ.get("HOST") or "127.0.0.1", int(port), model).run(check=options.check)
    except Stopped:
        say("demo: stopped")
        return 1 if options.check else 0
    except (DemoError, ProcessError) as error:
        say(f"demo: {error}")
        return 1
    say("demo: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
