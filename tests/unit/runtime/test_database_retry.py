"""A write whose connection is of no use any more is made again on a new one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection, transaction

from ravi_django.models import Session
from tests.support.patience import BOUND_S
from tests.support.runs import end_backend, in_background, on_postgresql
from tests.support.world import with_retry

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


def plain() -> None:
    Session.objects.create(title="kept")


def atomic() -> None:
    with transaction.atomic():
        plain()


def demoted() -> None:
    """Its server is a standby now: it answers, and refuses every write."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")


@pytest.mark.parametrize("write", [plain, atomic])
@pytest.mark.parametrize("lose", [end_backend, demoted])
def test_a_lost_connection_is_replaced(lose: Callable[[], None], write: Callable[[], None]) -> None:
    def lose_and_write() -> None:
        connection.ensure_connection()
        lose()
        with_retry(write)

    in_background(lose_and_write).result(BOUND_S)

    assert Session.objects.filter(title="kept").count() == 1
