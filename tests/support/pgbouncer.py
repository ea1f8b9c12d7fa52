"""PgBouncer in transaction mode, in front of the tests' PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from project.process import wait_until
from project.services import free_port
from tests.support.patience import BOUND_S, seconds
from tests.support.required import missing

CONFIG = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
"""


@contextmanager
def pgbouncer(database: dict[str, str], size: int = 3) -> Iterator[int]:
    """Yields its port. `database` is an entry of DATABASES; `size` is the number of connections to it."""
    program = shutil.which("pgbouncer") or missing("pgbouncer", "apt-get install pgbouncer")
    listen, user = free_port(), database["USER"]
    server = {"host": database["HOST"], "port": database["PORT"], "user": user, "password": database["PASSWORD"]}
    drop = {"user": "nobody"} if os.getuid() == 0 else {}  # it refuses to run as root
    with tempfile.NamedTemporaryFile("w", prefix="ravi-pgbouncer-", suffix=".ini") as file:
        file.write(CONFIG.format(listen=listen, size=size, **server))
        file.flush()
        os.chmod(file.name, 0o644)
        process = subprocess.Popen(
            [program, "-q", file.name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **drop
        )

        def answers() -> bool:
            try:
                psycopg.connect(host="127.0.0.1", port=listen, user=user, dbname=database["NAME"]).close()
            except psycopg.OperationalError:
                return False
            return True

        try:
            assert wait_until(answers, BOUND_S)
            yield listen
        finally:
            process.terminate()
            process.wait(seconds(10))
