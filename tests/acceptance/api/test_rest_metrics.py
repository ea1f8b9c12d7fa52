"""GET metrics/: figures of requests for operators, as JSON and in Prometheus' text format."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import Permission
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from tests.acceptance.api.api_support import client_of, error_of
from tests.support import world
from tests.support.asked import approval_of, asked_by
from tests.support.docs import Page
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db
METRICS = "/ravi/metrics/"
LINE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (-?[0-9.e+]+)\Z')


@pytest.fixture
def operator(django_user_model: Any) -> APIClient:
    user = django_user_model.objects.create_user("olga", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_humanrequest"))
    return client_of(user)


def lines_of(text: str) -> dict[tuple[str, str], float]:
    """By name and labels; every line is one of the format's."""
    found = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            name, labels, value = match.groups()
            assert (name, labels) not in found
            found[name, labels] = float(value)
    return found


def scrape(client: APIClient, **options: Any) -> dict[tuple[str, str], float]:
    response = client.get(METRICS, **options)
    assert (response.status_code, response["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return lines_of(response.content.decode())


def test_as_json(operator: APIClient) -> None:
    run = make_run()
    world.answer(approval_of(run, "group:finance").id, "deny")
    approval_of(run, "group:finance")

    body = operator.get(METRICS).json()

    assert set(body) == {"since", "requests"}
    assert datetime.now(UTC) - datetime.fromisoformat(body["since"]) - timedelta(days=30) < timedelta(minutes=1)
    (row,) = body["requests"]
    times = {name: row.pop(name) for name in list(row) if name.endswith(("_p50", "_p95", "_max", "_open_s"))}
    none = dict.fromkeys(("expired", "cancelled"), 0)
    some = {"asked": 2, "open": 1, "answered": 1, "denied": 1, "denied_share": 1.0}
    assert row == {"tool": "pay", "to": "group:finance", **some, **none}
    assert len(times) == 4 and all(0 <= value < 60 for value in times.values())
    now = datetime.now(UTC) + timedelta(milliseconds=2)
    since = operator.get(METRICS, {"since": (now - timedelta(hours=1)).isoformat()}).json()["requests"]
    assert [(row["asked"], row["open"]) for row in since] == [(2, 1)]
    for bad in ("nonsense", "", "2999-01-01", "1999-01-01", "0001-01-01"):
        response = operator.get(METRICS, {"since": bad})
        assert (response.status_code, error_of(response)["field"]) == (400, "since"), bad


ACCEPTS = [
    "text/plain",
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    # As Prometheus 2 asks.
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
]


def test_as_prometheus_asks(operator: APIClient) -> None:
    assert scrape(operator, data={"format": "prometheus"}) == {}
    run = make_run()
    world.answer(approval_of(run, "group:finance").id, "approve")
    approval_of(run, "group:finance"), asked_by(run, to="staff")
    approval_of(make_run(), 'group:a"b\\c', tool='x"}\n1')

    for accept in ACCEPTS:
        found = scrape(operator, headers={"Accept": accept})

        labels = 'tool="pay",to="group:finance"'
        assert found["ravi_requests_open", labels] == 1
        assert found["ravi_requests_answered_recently", labels] == 1
        assert found["ravi_requests_open", 'tool="question",to="staff"'] == 1
        assert 0 <= found["ravi_request_answer_recent_seconds", labels + ',quantile="0.5"'] < 60
        assert ("ravi_request_answer_recent_seconds", 'tool="question",to="staff",quantile="0.5"') not in found
        assert ("ravi_requests_open", r'tool="x\"}\n1",to="group:a\"b\\c"') in found  # escaped


def test_the_scraper_of_the_docs_logs_in_and_reads_the_metrics_that_the_page_lists(
    operator: APIClient, django_user_model: Any, settings: Any
) -> None:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "memory"}
    (job,) = yaml.safe_load(Page("monitor").code("prometheus.yml", "yaml"))["scrape_configs"]
    token = Token.objects.create(user=django_user_model.objects.get(username="olga"))
    login = {"Authorization": f"{job['authorization']['type']} {token.key}"}

    response = APIClient().get(
        job["metrics_path"], {name: one for name, (one,) in job["params"].items()}, headers=login
    )

    shown = {*re.findall(r"`(ravi_[a-z_]+)", Page("requests").text.split("## Response times")[1])}
    assert {*re.findall(r"^# TYPE (\w+) gauge$", response.content.decode(), re.MULTILINE)} == shown


@pytest.mark.parametrize("form", ["json", "prometheus"])
def test_of_a_tenant_one_sees_that_tenants_figures(operator: APIClient, settings: Any, form: str) -> None:
    approval_of(make_run(tenant="acme"), "group:acme"), approval_of(make_run(tenant="other"), "group:other")
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: "acme"}

    text = operator.get(METRICS, {"format": form}).content.decode()

    assert "group:acme" in text and "group:other" not in text


def test_what_is_answered_is_what_is_described(operator: APIClient) -> None:
    approval_of(make_run(), "staff")
    schema = operator.get("/ravi/schema/").json()
    responses = schema["paths"][METRICS]["get"]["responses"]
    answer = responses.pop("200")["content"]

    (row,) = operator.get(METRICS).json()["requests"]

    assert set(answer) == {"application/json", "text/plain"}
    assert {"400", "401", "403"} <= set(responses)
    assert all(set(error["content"]) == {"application/json"} for error in responses.values())
    assert set(schema["components"]["schemas"]["RequestFigures"]["properties"]) == set(row)
