"""Saves of the site's own models: told once each, who may know of them, what they break, and what they cost."""

import json
import os
import signal
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.db.models.signals import post_save

from project.models import Invoice
from ravi_django.models import Run, Source, SourceItem
from ravi_django.testing import FakeClock
from tests.support import forks, world
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, on_postgresql, somebody_waits_for_a_lock, until
from tests.support.saves import declare, hinted, invoice, invoices_named, told  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)


# ------------------------------------------------------------------------------------------------- nothing breaks


def customers() -> list[str]:
    return [payload["title"].split()[-1] for payload in told()]


def test_a_note_that_fails_fails_no_save(monkeypatch, caplog):
    declare()

    def fail(*args: Any) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")

    world.patch(monkeypatch, "model_sources_note_save", fail)
    with transaction.atomic():
        invoice()
        assert Invoice.objects.count() == 1, "the transaction goes on"
    assert "was not noted" in caplog.text


def test_a_source_deleted_this_moment_fails_no_save():
    source = declare()
    assert world.model_sources_sources_of("project.invoice") == (source.id,)
    Source.objects.filter(id=source.id)._raw_delete("default")  # without a signal, as another process does
    with transaction.atomic():
        invoice()
    assert Invoice.objects.count() == 1 and not SourceItem.objects.exists()


@on_postgresql
def test_a_source_stays_until_the_save_that_it_wants_has_committed():
    source = declare()
    with transaction.atomic():
        invoice()
        deleting = in_background(Source.objects.filter(id=source.id)._raw_delete, "default")
        until(somebody_waits_for_a_lock)
    with suppress(DatabaseError):  # a note refers to it by then
        deleting.result(timeout=BOUND_S)
    assert Invoice.objects.count() == 1


@on_postgresql
def test_nobody_who_saves_waits_for_another_or_for_a_source_that_is_told_or_deleted():
    source = declare()
    row = invoice()
    with transaction.atomic():
        row.save()
        assert in_background(invoice, "OTHER").result(timeout=BOUND_S).customer == "OTHER"
        teller = in_background(world.model_sources_run, source.id)
        assert teller.result(timeout=BOUND_S) == 2, "what has committed; this one waits for its own commit"
    assert world.model_sources_run(source.id) == 1
    with transaction.atomic():
        Source.objects.select_for_update(no_key=True).get(id=source.id)
        assert in_background(invoice, "OTHER").result(timeout=BOUND_S).customer == "OTHER"
    SourceItem.objects.all().delete()
    with transaction.atomic():
        Source.objects.filter(id=source.id)._raw_delete("default")
        assert in_background(invoice).result(timeout=BOUND_S).pk
    assert not SourceItem.objects.exists()


@on_postgresql
def test_two_who_tell_at_once_tell_once():
    source = declare()
    for number in range(30):
        invoice(str(number))
    tellers = [in_background(world.model_sources_run, source.id) for _ in range(4)]
    assert sum(teller.result(timeout=BOUND_S) for teller in tellers) == 30
    assert len(told()) == 30


@pytest.mark.sqlite
def test_a_lost_hint_is_found_by_the_sweep():
    with FakeClock() as clock:
        source = declare()
        invoice()
        hinted.clear()
        assert world.model_sources_sweep() == 0, "its own hint may be on its way"
        clock.advance(world.SAVES_LATE_S + 1)
        assert world.model_sources_sweep() == 1
    assert hinted == [("ravi.deliver_saves", str(source.id))]


def test_a_row_that_cannot_be_read_does_not_hold_up_the_others(monkeypatch):
    source = declare()
    bad, good = invoice("BAD"), invoice("GOOD")

    def shown(self: Invoice) -> str:
        if self.customer == "BAD":
            with connection.cursor() as cursor:
                cursor.execute("SELECT nonsense FROM nowhere")
        return self.customer

    monkeypatch.setattr(Invoice, "__str__", shown)
    assert world.model_sources_run(source.id) == 2

    found = {payload["extra"]["pk"]: payload for payload in told()}
    assert found[good.pk]["title"] == "GOOD"
    assert "nonsense" in found[str(bad.pk)]["extra"]["unreadable"]


# -------------------------------------------------------------------------------------------------- who may know


def test_the_owner_must_be_allowed_to_see_the_model():
    ann = get_user_model().objects.create_user("ann")
    source = declare(owner=ann)
    invoice()

    assert world.model_sources_run(source.id) == 0
    assert told() == []
    source.refresh_from_db()
    assert "project.view_invoice" in source.error and "kept for 7 days" in source.error
    ann.user_permissions.add(Permission.objects.get(codename="view_invoice"))
    invoice("SEEN")
    assert world.model_sources_run(source.id) == 2
    assert customers() == ["ACME", "SEEN"], "a permission can be given"
    source.refresh_from_db()
    assert source.error == ""


def test_keys_and_passwords_are_never_told(settings):
    settings.RAVI = {**settings.RAVI, "SOURCE_MODELS": ["auth.User"]}
    source = declare(location="auth.User", options={"fields": ["username", "password"]})
    get_user_model().objects.create_user("ann", password="tiger")
    world.model_sources_run(source.id)
    (payload,) = told()
    assert payload["extra"]["fields"] == {"username": "ann"}
    assert next(world.field_faults(get_user_model(), ["password"])).startswith("auth.User has no field")


@pytest.mark.parametrize(("fault", "words"), [("an older setting", "SOURCE_MODELS"), ("no agent", "test/gone")])
def test_a_save_that_cannot_be_told_is_kept_for_a_week(settings, fault, words):
    named = settings.RAVI
    with FakeClock() as clock:
        source = declare(agent="test/gone" if fault == "no agent" else "test/code")
        invoice("OLD")
        clock.advance(3 * 86400)
        invoice("NEW")
        clock.advance(4 * 86400)
        settings.RAVI = named if fault == "no agent" else {**named, "SOURCE_MODELS": []}
        assert world.model_sources_run(source.id) == 0
        source.refresh_from_db()
        assert words in source.error and told() == []
        assert SourceItem.objects.count() == 2, "7 days are not over"
        clock.advance(1)
        assert world.model_sources_run(source.id) == 0
        settings.RAVI = named
        Source.objects.update(agent="test/code")

        assert world.model_sources_run(source.id) == 1

    source.refresh_from_db()
    assert source.error == ""
    assert customers() == ["NEW"]


def test_a_model_that_cannot_be_told_of_is_a_fault_and_a_whole_app_may_be_named(settings):
    for names in (["ravi.Run"], ["ravi"], ["nope.Nope"], ["project.Nope"], [5], "project.Invoice"):
        settings.RAVI = {**settings.RAVI, "SOURCE_MODELS": names}
        assert list(world.model_sources_faults()), names
        assert world.named_models() == {}
    settings.RAVI = {**settings.RAVI, "SOURCE_MODELS": ["auth"]}
    assert {"auth.user", "auth.group", "auth.permission"} <= set(world.named_models())
    assert list(world.model_sources_faults()) == []


# ----------------------------------------------------------------------------------------------------- what it costs


def test_models_that_no_source_wants_cost_no_query(django_assert_num_queries):
    assert not post_save.has_listeners(Group)
    assert post_save.has_listeners(Invoice)
    invoice()
    with django_assert_num_queries(1):
        invoice()


def test_a_source_of_another_process_is_known_within_seconds(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    world.model_sources_forget()
    invoice()
    source = declare()
    world.replace("model_sources_declared", (now[0] + world.DECLARED_S, {}))  # as the other process has it
    invoice()
    assert not SourceItem.objects.exists()
    now[0] += world.DECLARED_S

    invoice()
    assert SourceItem.objects.get().source_id == source.id


PROCESS = """
import os, signal, sys
os.environ |= {"DATABASE_URL": sys.argv[2], "DJANGO_SETTINGS_MODULE": "project.settings"}
import django
from django.conf import settings
django.setup()
settings.RAVI = {**settings.RAVI, "SOURCE_MODELS": ["project.Invoice"]}
from django.db import transaction
from project.models import Invoice
from tests.support import world
from tests.support.runs import code

def dies(*args):
    os.kill(os.getpid(), signal.SIGKILL)

code(lambda ctx, inbox: None)
world.connect()
if sys.argv[1] == "save":
    world.replace("background_hint", dies)
    with transaction.atomic():
        Invoice.objects.create(customer="ACME", amount=5, idempotency_key="key-1")
else:
    world.replace("heard", dies)
    world.model_sources_run(sys.argv[3])
"""


def killed(*args: str) -> bool:
    database = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}"))
    done = forks.run(["-c", PROCESS, args[0], database, *args[1:]], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return True


@on_postgresql
def test_a_save_whose_process_is_killed_is_found_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = declare()
    assert killed("save")
    assert SourceItem.objects.filter(undelivered__isnull=False).count() == 1

    assert killed("deliver_items", str(source.id))
    assert (told(), Run.objects.count()) == ([], 0)

    assert world.model_sources_sweep() == 0, "a hint may be on its way"
    world.patch(monkeypatch, "SAVES_LATE_S", -1.0)
    assert world.model_sources_sweep() == 1
    assert hinted == [("ravi.deliver_saves", str(source.id))]
    assert [world.model_sources_run(source.id), world.model_sources_run(source.id)] == [1, 0]
    assert [row["extra"]["created"] for row in told()] == [True]


def test_a_save_is_told_when_it_has_committed():
    source = declare(options={"fields": ["customer", "amount"]})

    with transaction.atomic():
        row = invoice()
        assert hinted == []
    assert hinted == [("ravi.deliver_saves", str(source.id))]
    assert told() == []
    assert world.model_sources_run(source.id) == 1

    (payload,) = told()
    assert payload["title"] in ("5 to ACME", "5.00 to ACME")
    extra = payload["extra"]
    assert (extra["model"], extra["pk"], extra["created"]) == ("project.Invoice", row.pk, True)
    assert (extra["fields"], payload["revision"]) == ({"customer": "ACME", "amount": "5.00"}, 1)
    item = SourceItem.objects.get()
    assert (item.revision, item.undelivered) == (1, None)
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
    assert hinted == [("ravi.deliver_saves", str(source.id))]
    assert world.model_sources_run(source.id) == 5
    assert customers() == [f"KEPT-{number}" for number in range(5)]


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
    assert not SourceItem.objects.filter(undelivered__isnull=False).exists()


def test_a_bulk_create_sends_no_signal_and_a_fixture_is_not_told(tmp_path):
    source = declare()
    Invoice.objects.bulk_create([Invoice(customer="BULK", amount=1)])
    fixture = str(tmp_path / "invoices.json")
    call_command("dumpdata", "project.Invoice", output=fixture)
    call_command("loaddata", fixture, verbosity=0)
    assert not SourceItem.objects.exists() and world.model_sources_run(source.id) == 0


def test_each_source_of_a_model_is_told():
    sources = [declare(name="one"), declare(name="two", location="PROJECT.invoice"), declare(name="off", enabled=False)]
    invoice()
    assert sorted(row.source_id for row in SourceItem.objects.all()) == sorted(source.id for source in sources[:2])
