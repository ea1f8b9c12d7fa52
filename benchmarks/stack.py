"""What the benchmarks run on: servers of their own with fsync on, and the site's processes where one is measured."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from project.process import Child, ProcessError, wait_until
from project.services import Postgres, Valkey, free_port

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 60.0
WORKER_NAME = "bench-worker"  # the application_name of the worker's database connections


@dataclass(frozen=True, slots=True)
class Stack:
    folder: Path
    database_url: str  # direct
    redis_url: str
    valkey: Valkey | None = None
    pooled_url: str = ""  # of the database behind PgBouncer, if there is one

    @property
    def site_url(self) -> str:
        """Of the database, as the site's processes connect to it."""
        return self.pooled_url or self.database_url

    def child(self, name: str, *command: str, **env: str) -> Child:
        """A Python process of the site."""
        return Child(
            name,
            [sys.executable, *command],
            log=self.folder / f"{name}.log",
            pid_file=self.folder / f"{name}.pid",
            env={"PYTHONUNBUFFERED": "1", **env},
            cwd=ROOT,
        )

    def empty(self) -> None:
        """Delete all rows of the app and everything in Valkey. No worker may be running."""
        import redis
        from django.db import connection

        with connection.cursor() as cursor:
            tables = [name for name in connection.introspection.table_names(cursor) if name.startswith("ravi_")]
            cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
        connection.close()
        with redis.Redis.from_url(self.redis_url) as client:
            client.flushall()


@contextmanager
def servers(*, pooled: bool = False) -> Iterator[Stack]:
    """PostgreSQL and Valkey in a temporary folder, named in the environment; `pooled` puts PgBouncer in front."""
    with tempfile.TemporaryDirectory(prefix="ravi-bench-", ignore_cleanup_errors=True) as name, ExitStack() as opened:
        folder = Path(name)
        pg = opened.enter_context(Postgres(folder / "postgresql"))
        valkey = opened.enter_context(Valkey(folder / "valkey"))
        stack = Stack(folder, pg.url, valkey.url, valkey)
        if pooled:
            os.environ["BENCH_POOLED"] = "1"
            stack = replace(stack, pooled_url=opened.enter_context(_pooler(pg.url)))
        os.environ.update(
            DATABASE_URL=stack.site_url,
            REDIS_URL=valkey.url,
            DJANGO_SETTINGS_MODULE="benchmarks.settings",
            LOG_LEVEL="WARNING",
        )
        yield stack


@contextmanager
def _pooler(url: str) -> Iterator[str]:
    """PgBouncer in transaction mode with its default number of connections; gives the URL of the database behind it."""
    from tests.support.pgbouncer import pgbouncer

    server = urlsplit(url)
    assert server.hostname and server.port
    database = {
        "NAME": server.path[1:],
        "USER": server.username or "",
        "PASSWORD": server.password or "",
        "HOST": server.hostname,
        "PORT": str(server.port),
    }
    with pgbouncer(database, size=20) as port:
        yield url.replace(f":{server.port}/", f":{port}/")


def set_up_site() -> None:
    """Django in this process, and an up-to-date schema."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


@contextmanager
def worker(stack: Stack, name: str = "worker", **env: str) -> Iterator[Child]:
    """A Celery worker as CONTRACT says to start one, warm: its engine and its model library are there."""
    options = (
        "-P",
        "threads",
        "-c",
        "200",
        "-Q",
        "ravi",
        "-n",
        f"{name}@%h",
        "--without-gossip",
        "--without-mingle",
        "--loglevel",
        "WARNING",
    )
    child = stack.child(
        name,
        *("-m", "celery", "-A", "project", "worker", *options),
        **{"DATABASE_URL": f"{stack.site_url}?application_name={WORKER_NAME}", **env},
    )
    with running(child):
        yield child


@contextmanager
def web(stack: Stack) -> Iterator[str]:
    """The site under uvicorn; gives its host and port."""
    port = free_port()
    child = stack.child(
        "web",
        *("-m", "uvicorn", "project.asgi:application", "--host", "127.0.0.1", "--port", str(port)),
        *("--lifespan", "off", "--log-level", "warning"),
    )
    with running(child):
        yield f"127.0.0.1:{port}"


@contextmanager
def model_server(stack: Stack, delay_s: float, tokens: int) -> Iterator[str]:
    """The OpenAI-protocol server in a process of its own; gives its base URL."""
    child = stack.child(
        "model-server",
        *("tests/support/openai_server.py", "--delay", str(delay_s), "--tokens", str(tokens)),
    )
    with running(child):
        require(lambda: child.tail().strip().isdigit(), child, "print its port")
        yield f"http://127.0.0.1:{child.tail().strip()}/v1"


@contextmanager
def running(child: Child) -> Iterator[None]:
    child.start()
    try:
        yield
    finally:
        child.stop()


def require(condition: object, child: Child, what: str) -> None:
    """Wait for a condition on a child. Raises ProcessError with its log's tail when it does not come true."""
    assert callable(condition)
    if not wait_until(lambda: bool(condition()) or not child.running, START_TIMEOUT_S) or not condition():
        raise ProcessError(f"{child.name} did not {what} within {START_TIMEOUT_S:.0f} s\n{child.tail()}")
