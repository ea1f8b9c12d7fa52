"""The test sites, one row each. A property that matters is in one row at least; rows combine several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    django: str = ""  # a major version in an environment of its own; empty: the tests' own Django
    admin: str = "stock"  # or the theme "unfold" or "jazzmin"
    csp: bool = False  # a strict Content-Security-Policy on every page
    users: str = "django"  # "email": no username and no names; "uuid": UUID keys
    database: str = "sqlite"  # or PostgreSQL behind "pgbouncer", or with Django's "pool"
    replica: bool = False  # a router reads from a replica that receives no row after the installation
    workers: str = "none"  # the pool of the site's own Celery worker, which does not consume the app's queue
    server: str = "runserver"  # or "gunicorn" with one sync worker, or "uvicorn"
    mount: str = "ravi/"

    @property
    def has_broker(self) -> bool:
        return self.workers != "none"


ROWS = (
    Row("shop", admin="unfold", users="email", database="pgbouncer", workers="prefork", server="gunicorn",
        mount="<str:version>/ai/"),
    Row("news", admin="jazzmin", users="uuid", database="pool", replica=True, workers="threads", server="uvicorn"),
    Row("small", django="6", csp=True),
)  # fmt: skip
