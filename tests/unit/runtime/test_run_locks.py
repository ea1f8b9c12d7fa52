"""Locked runs keep other writers out, and nobody who only refers to them."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection, transaction

from ravi_django.models import Ask, Run
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, make_run, on_postgresql
from tests.support.world import touching_lock

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


def at_once(write):
    """In a transaction of its own, which waits for no lock longer than a moment."""

    def writing():
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '300ms'")
            write()

    return writing


def test_a_row_that_refers_to_a_locked_run_is_written_at_once():
    runs = [make_run().id, make_run().id]

    with transaction.atomic():
        touching_lock(runs)
        in_background(at_once(lambda: Ask.objects.create(asker_id=runs[0], target_id=runs[1]))).result(BOUND_S)

    assert Ask.objects.filter(asker_id=runs[0]).exists()


def test_a_locked_run_is_written_by_nobody_else():
    runs = [make_run().id, make_run().id]

    with transaction.atomic():
        touching_lock(runs)
        with pytest.raises(OperationalError):
            in_background(at_once(lambda: Run.objects.filter(id=runs[1]).update(hints=7))).result(BOUND_S)
