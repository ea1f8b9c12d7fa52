"""POST tickets/, and taking one."""

from __future__ import annotations

import hashlib
import io
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core import serializers
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.utils import timezone
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from ravi_django.api import sse
from ravi_django.models import Run, Ticket, uuid7
from tests.acceptance.api.api_support import AGENT, RUNSERVER, client_of, error_of
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import in_background, on_postgresql, until, waiting_for_locks

pytestmark = pytest.mark.django_db
JSON = {"Accept": "application/json"}


def test_a_ticket_is_issued_for_a_minute_and_only_its_hash_kept(client: APIClient, user: Any) -> None:
    for bad in ({"user": 2}, {"ticket": "mine"}):
        refused = client.post("/ravi/tickets/", bad, format="json")
        assert (refused.status_code, error_of(refused)["field"]) == (400, next(iter(bad)))
    assert not Ticket.objects.exists()
    assert client.post("/ravi/tickets/", {}, format="json").status_code == 201
    Ticket.objects.all().delete()

    response = client.post("/ravi/tickets/")

    found, row = response.json(), Ticket.objects.get()
    assert (response.status_code, set(found)) == (201, {"ticket", "expires_at"})
    assert (row.id, row.user) == (hashlib.sha256(found["ticket"].encode()).hexdigest(), user)
    assert datetime.fromisoformat(found["expires_at"]) == row.expires_at
    assert timedelta(seconds=50) < row.expires_at - timezone.now() <= timedelta(seconds=61)


def test_an_unknown_ticket_is_nobody(user: Any) -> None:
    world.tickets_issue(user)

    for ticket in ("", "nonsense", "\ud800", "\0", "x" * 100_000):
        assert world.tickets_take(ticket) is None, ticket[:10]
    assert Ticket.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_old_ticket_is_nobody_and_goes_with_the_next_sweep(user: Any) -> None:
    ticket, _ = world.tickets_issue(user)
    Ticket.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    assert world.tickets_take(ticket) is None
    world.sweeper_sweep(lambda run_ids: None)
    assert not Ticket.objects.exists()


def test_no_row_and_no_export_has_a_live_credential(user: Any, run: Run, settings: Any) -> None:
    token, browser = Token.objects.create(user=user), Client()
    browser.force_login(user)
    by_token = client_of().post("/ravi/tickets/", headers={"Authorization": f"Token {token.key}"}).json()["ticket"]
    by_session = browser.post("/ravi/tickets/", content_type="application/json").json()["ticket"]
    rows, exported = serializers.serialize("json", Ticket.objects.all()), io.StringIO()
    call_command("ravi_export", str(user), stdout=exported)

    assert Ticket.objects.count() == 2
    for secret in (token.key, browser.session.session_key, by_token, by_session):
        assert secret not in rows + exported.getvalue()
    assert "ravi.ticket" not in exported.getvalue()
    assert [events(f"runs/{run.id}", ticket).status_code for ticket in (by_token, by_session)] == [200, 200]
    settings.SECRET_KEY = "another"
    assert events(f"runs/{run.id}", by_token).status_code == 401


def events(place: str, ticket: str, **query: Any) -> Any:
    return client_of().get(f"/ravi/{place}/events/", {"ticket": ticket, **query}, headers=JSON)


def test_for_events_it_opens_one_run_again_and_nothing_else(client: APIClient, user: Any, run: Run) -> None:
    other = world.submit(AGENT, "hi", user=user)
    ticket, late = (client.post("/ravi/tickets/").json()["ticket"] for _ in range(2))
    mine = f"runs/{run.id}"

    assert [events(mine, ticket).status_code for _ in range(2)] == [200, 200]
    assert events("topics/agent.stream/api-helper", ticket, run=run.id).status_code == 200
    for place in (f"runs/{other.id}", f"topics/agent.progress/{other.id}"):
        refused = events(place, ticket)
        assert (refused.status_code, error_of(refused)["code"]) == (401, "unauthenticated")
    assert events("topics/agent.stream/api-helper", ticket).status_code == 400
    assert client_of().get(f"/ravi/{mine}/", {"ticket": ticket}).status_code == 401
    assert world.tickets_take(ticket) is None
    assert world.tickets_take(late) and events(mine, late).status_code == 401
    assert Ticket.objects.get().ends_at - timezone.now() <= timedelta(days=1)
    for ends in ("ends_at", "expires_at"):
        Ticket.objects.update(**{ends: timezone.now() - timedelta(seconds=1)})
        assert events(mine, ticket).status_code == events(mine, "unknown").status_code == 401, ends
        Ticket.objects.update(**{ends: timezone.now() + timedelta(seconds=60)})


@pytest.mark.django_db(transaction=True)
def test_only_an_open_stream_renews_it_and_none_after_the_end(user: Any, run: Run, monkeypatch: Any) -> None:
    def stream() -> tuple[float, float]:
        """After a stream, for how many seconds the ticket is valid: without a renewal, and at most."""
        b"".join(client_of().get(f"/ravi/runs/{run.id}/events/", {"ticket": ticket}, **RUNSERVER))
        return left()

    def left() -> tuple[float, float]:
        row, now = Ticket.objects.get(), timezone.now()
        return (row.expires_at - now).total_seconds(), (row.ends_at - now).total_seconds()

    monkeypatch.setattr(sse, "WSGI_S", 0)
    ticket, _ = world.tickets_issue(user)
    Ticket.objects.update(expires_at=timezone.now() + timedelta(seconds=20))
    assert events(f"runs/{run.id}", ticket).status_code == 200
    assert client_of().head(f"/ravi/runs/{run.id}/events/", {"ticket": ticket}, **RUNSERVER).status_code == 200
    assert left()[0] <= 20, "a page renews nothing"
    assert 50 < stream()[0] <= 61 < 1000 < left()[1]

    world.cancel(run.id, "enough")
    assert 50 < stream()[1] <= 61
    Ticket.objects.update(ends_at=timezone.now() + timedelta(seconds=20))
    assert stream()[1] <= 20, "the end of the stream is also that of its ticket"


def test_for_events_it_goes_with_the_token_that_asked_for_it(user: Any, run: Run) -> None:
    token = Token.objects.create(user=user)
    ticket, _ = world.tickets_issue(user, world.Credential.of_token(token))
    assert events(f"runs/{run.id}", ticket).status_code == 200

    token.delete()

    assert events(f"runs/{run.id}", ticket).status_code == 401


@pytest.mark.django_db(transaction=True)
@on_postgresql
@pytest.mark.parametrize("runs", [(None, None), (None, uuid7()), (uuid7(), uuid7())])
def test_of_two_that_take_it_at_once_one_gets_it(user: Any, runs: Any) -> None:
    ticket, _ = world.tickets_issue(user)
    with transaction.atomic():  # both have read the row before either may delete it
        Ticket.objects.select_for_update().get()
        taking = [in_background(world.tickets_take, ticket, run) for run in runs]
        until(lambda: waiting_for_locks() == 2)

    assert sorted(future.result(BOUND_S) is None for future in taking) == [False, True]
