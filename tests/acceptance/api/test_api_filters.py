"""Filters of lists: by time, user, text, order and metadata."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from rest_framework.test import APIClient

from ravi_django.models import HumanRequest, Run, Session, first_id_of
from tests.acceptance.api.api_support import AGENT, client_of, error_of
from tests.support import world
from tests.support.asked import asked_by
from tests.support.cases import queries_of

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def made(user: Any, hours: int, metadata: Any) -> str:
    """A run that was made so many hours after NOW."""
    id, session = first_id_of(NOW + timedelta(hours=hours)), Session.objects.create(owner=user)
    Run.objects.create(id=id, agent=AGENT, session=session, owner=user, metadata=metadata, status="completed")
    return str(id)


def ids(client: APIClient, address: str, query: str) -> list[str]:
    found = client.get(f"/ravi/{address}/?{query}")
    assert found.status_code == 200, found.content
    return [row["id"] for row in found.json()["results"]]


def test_a_flag_is_true_or_false_and_an_order_has_names(client: APIClient) -> None:
    for order in (",", "created_at,,-created_at"):
        assert client.get(f"/ravi/sessions/?ordering={order}").status_code == 400
    for name in ("mine", "newest_fork"):
        assert [client.get(f"/ravi/sessions/?{name}={value}").status_code for value in ("true", "False")] == [200, 200]
        refused = client.get(f"/ravi/sessions/?{name}=yes")
        assert (refused.status_code, error_of(refused)["field"]) == (400, name)


def test_runs_by_time_order_and_metadata(user: Any, client: APIClient) -> None:
    assert not apps.is_installed("django_filters")
    metadata = [{"customer": "acme", "n": 5, "vip": True}, {"customer": "other"}, {}]
    one, two, three = [made(user, hours, metadata[hours]) for hours in range(3)]
    acme = {"metadata.customer=acme", "metadata.n=5", "metadata.vip=true", "metadata.n=5&metadata.customer=acme"}
    for query, wanted in {
        "created_after=2026-05-01T13:00:00Z": [three, two],
        "created_after=2026-05-01T15:00:00%2B02:00": [three, two],
        "created_before=2026-05-01T13:00:00Z": [one],
        "created_after=2026-05-01&created_before=2026-05-02": [three, two, one],
        "created_after=2026-05-02": [],
        "ordering=created_at": [one, two, three],
        "ordering=-created_at&search=": [three, two, one],
        **{key: [one] for key in acme},
        "metadata.customer=acm": [],
        "metadata.customer=acme&metadata.n=6": [],
        "metadata.a--b__c=x": [],
        "search=API-HELP": [three, two, one],
        "status=completed": [three, two, one],
        "status=pending": [],
        f"session={Run.objects.get(id=one).session_id}": [one],
        f"agent={AGENT}": [three, two, one],
        "agent=react/other": [],
        "search=%25": [],
        "metadatacustomer=acme&colour=red": [three, two, one],
    }.items():
        assert ids(client, "runs", query) == wanted, query

    page = client.get("/ravi/runs/?ordering=created_at&limit=2").json()
    assert [row["id"] for row in client.get(page["next"]).json()["results"]] == [three]


@pytest.mark.parametrize("address", ["runs", "sessions", "requests"])
def test_a_filter_shows_nobody_elses_rows_and_takes_no_more_queries(
    user: Any, client: APIClient, strange_client: APIClient, staff: Any, root: Any, address: str
) -> None:
    run = world.submit(AGENT, "hi", user=user)
    asked = asked_by(run, text="Pay ACME?")
    id = {"runs": run.id, "sessions": run.session_id, "requests": asked.id}[address]
    query = f"agent={AGENT}&created_after=2020-01-01&ordering=created_at"

    assert ids(client, address, query) == [str(id)]
    assert ids(strange_client, address, query) == []
    assert ids(client_of(root), address, f"{query}&owner=ann") == [str(id)]
    assert ids(client_of(root), address, "owner=bob") == []
    if address != "requests":  # the staff are asked, and read what they are asked
        assert ids(client_of(staff), address, "owner=ann") == []
    refused = client.get(f"/ravi/{address}/?owner=ann")
    assert (refused.status_code, error_of(refused)["code"]) == (403, "forbidden")
    plain = queries_of(lambda: ids(client, address, ""))
    assert queries_of(lambda: ids(client, address, query)) == plain


def test_a_text_that_is_hidden_from_its_reader_is_not_searched(user: Any, client: APIClient, root: Any) -> None:
    run = world.submit(AGENT, "hi", user=user)
    open_one, hidden = asked_by(run, text="Pay 7 to ACME?"), asked_by(run, text="Pay 8 to ACME?")
    HumanRequest.objects.filter(id=hidden.id).update(details={"hidden": True})

    assert ids(client, "requests", "search=acme") == [str(open_one.id)]
    assert ids(client_of(root), "requests", "search=acme") == [str(hidden.id), str(open_one.id)]


def test_sessions_are_found_by_title_and_runs_by_their_sessions(user: Any, client: APIClient) -> None:
    session = client.post("/ravi/sessions/", {"title": "Refund of ACME"}, format="json").json()["id"]
    run = client.post(f"/ravi/sessions/{session}/messages/", {"agent": AGENT, "text": "hi"}, format="json").json()["id"]
    world.submit(AGENT, "hi", user=user)

    for query in ("search=acme", f"search=refund&agent={AGENT}"):
        assert ids(client, "sessions", query) == [session]
        assert ids(client, "runs", query) == [run]
    assert ids(client, "sessions", "search=nothing") == []


def test_all_faults_of_the_filters_are_in_one_answer(client: APIClient) -> None:
    names = "&".join(f"metadata.n{number}=1" for number in range(6))
    for query, fields in {
        "created_after=yesterday&created_before=&ordering=cost&status=100%25": {
            *("created_after", "created_before", "ordering", "status")
        },
        f"search={'x' * 201}&agent=%25s": {"search", "agent"},
        "metadata.1=x": {"metadata.NAME"},
        "metadata.=x": {"metadata.NAME"},
        "metadata.a=%00": {"metadata.NAME"},
        f"metadata.a={'x' * 201}": {"metadata.NAME"},
        names: {"metadata.NAME"},
        "created_after=0001-01-01": {"created_after"},
    }.items():
        refused = client.get(f"/ravi/runs/?{query}")
        assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_input"), query
        assert {fault["field"] for fault in refused.json()["errors"]} == fields
