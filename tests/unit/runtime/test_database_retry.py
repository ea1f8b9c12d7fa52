"""A write whose connection was ended by the server is made again on a new one."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from django.db import connection, transaction

from ravi_django.models import Session
from ravi_django.runtime.database import with_retry


def plain() -> None:
    Session.objects.create(title="kept")


def atomic() -> None:
    with transaction.atomic():
        plain()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("write", [plain, atomic])
def test_a_lost_connection_is_replaced(write: Callable[[], None]) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no server")
    connection.ensure_connection()
    lost = connection.connection.info
    with psycopg.connect(lost.dsn, password=lost.password, autocommit=True) as other:
        assert other.execute("SELECT pg_terminate_backend(%s, 5000)", [lost.backend_pid]).fetchone() == (True,)

    with_retry(write)

    assert Session.objects.filter(title="kept").count() == 1
