"""A save that has committed is told, once, though its process was killed right behind it, and the teller's as well."""

from __future__ import annotations

import os
import signal
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection

from ravi_django.models import Run, SourceItem
from tests.support import forks, world
from tests.support.runs import on_postgresql
from tests.support.saves import declare, hinted, told
from tests.support.saves import invoices_named as invoices_named

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]

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


def test_a_save_whose_process_is_killed_is_found_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = declare()
    assert killed("save")
    assert SourceItem.objects.filter(untold__isnull=False).count() == 1

    assert killed("tell", str(source.id))
    assert (told(), Run.objects.count()) == ([], 0)

    assert world.model_sources_sweep() == 0, "a hint may be on its way"
    world.patch(monkeypatch, "LATE_S", -1.0)
    assert world.model_sources_sweep() == 1
    assert hinted == [("ravi.tell_saves", str(source.id))]
    assert [world.model_sources_run(source.id), world.model_sources_run(source.id)] == [1, 0]
    assert [row["extra"]["created"] for row in told()] == [True]
