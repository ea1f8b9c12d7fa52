"""Saves of the site's own models: noted with the save or not at all, told once each, and free where none is wanted."""

from __future__ import annotations

import io
import json
from contextlib import suppress

import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.models import F

from project.models import Invoice
from ravi_django.models import Run, SourceItem
from tests.support import world
from tests.support.saves import declare, hinted, invoice, invoices_named, told  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_save_is_told_when_it_has_committed():
    source = declare(options={"fields": ["customer", "amount"]})

    with transaction.atomic():
        row = invoice()
        assert hinted == []
    assert hinted == [("ravi.tell_saves", str(source.id))]
    assert told() == []
    assert world.model_sources_run(source.id) == 1

    (payload,) = told()
    assert payload["title"] == "5 to ACME" or payload["title"] == "5.00 to ACME"
    about = {name: payload["extra"][name] for name in ("model", "pk", "created", "fields")}
    assert about == {
        "model": "project.Invoice",
        "pk": row.pk,
        "created": True,
        "fields": {"customer": "ACME", "amount": "5.00"},
    }
    assert payload["revision"] == 1
    item = SourceItem.objects.get()
    assert (item.revision, item.untold) == (1, None)
    source.refresh_from_db()
    assert source.checked_at is not None and source.error == ""


def test_what_is_rolled_back_was_never_told_and_many_saves_of_a_transaction_are_one_hint():
    source = declare()

    with suppress(ZeroDivisionError), transaction.atomic():
        invoice()
        1 / 0  # noqa: B018
    with transaction.atomic():
        with suppress(ZeroDivisionError), transaction.atomic():
            invoice()
            1 / 0  # noqa: B018
        for number in range(5):
            invoice(f"KEPT-{number}")

    assert SourceItem.objects.count() == 5
    assert hinted == [("ravi.tell_saves", str(source.id))]
    assert world.model_sources_run(source.id) == 5
    assert [payload["title"].split()[-1] for payload in told()] == [f"KEPT-{number}" for number in range(5)]


def test_each_save_is_a_revision_whatever_it_changed():
    source = declare()
    row = invoice()
    world.model_sources_run(source.id)
    for _ in range(2):
        row.save()
        world.model_sources_run(source.id)

    found = [(payload["revision"], payload["extra"]["created"]) for payload in told()]
    assert found == [(1, True), (2, False), (3, False)]
    assert len({payload["identity"] for payload in told()}) == Run.objects.count() == 1
    assert {str(payload["extra"]["fields"]) for payload in told()} == {"{}"}, "no field is named"
    assert "key-1" not in json.dumps(told())


def test_saves_that_come_together_are_told_as_the_row_is_by_then():
    source = declare(options={"fields": ["amount"]})
    row = invoice()
    Invoice.objects.filter(pk=row.pk).update(amount=7)
    row.refresh_from_db()
    row.amount = F("amount") + 1
    row.save()
    gone = invoice("GONE")
    gone.delete()

    assert world.model_sources_run(source.id) == 3

    (payload,) = told()
    assert (payload["extra"]["fields"], payload["extra"]["created"]) == ({"amount": "8.00"}, True)
    assert not SourceItem.objects.filter(untold__isnull=False).exists()


def test_a_bulk_create_sends_no_signal_and_a_fixture_is_not_told(tmp_path):
    source = declare()
    Invoice.objects.bulk_create([Invoice(customer="BULK", amount=1)])
    out = io.StringIO()
    call_command("dumpdata", "project.Invoice", stdout=out)
    fixture = tmp_path / "invoices.json"
    fixture.write_text(out.getvalue())
    call_command("loaddata", str(fixture), verbosity=0)

    assert not SourceItem.objects.exists() and world.model_sources_run(source.id) == 0


def test_each_source_of_a_model_is_told():
    sources = [declare(name="one"), declare(name="two", location="PROJECT.invoice"), declare(name="off", enabled=False)]
    invoice()

    assert sorted(row.source_id for row in SourceItem.objects.all()) == sorted(source.id for source in sources[:2])
