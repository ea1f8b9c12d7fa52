"""GET schema/."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from django.contrib.staticfiles import finders
from django.urls import URLPattern
from django.utils import translation
from drf_spectacular.validation import validate_schema
from rest_framework.test import APIClient

from ravi_django import urls
from ravi_django.api import openapi
from ravi_django.models import Run
from tests.acceptance.api.api_support import error_of
from tests.support.asked import asked_by

pytestmark = pytest.mark.django_db
DOCS = (Path(__file__).resolve().parents[3] / "docs/reference/rest.md").read_text()


@pytest.fixture
def schema(client: APIClient) -> dict[str, Any]:
    response = client.get("/ravi/schema/")
    assert response.status_code == 200
    return dict(response.json())


def test_it_is_valid_openapi_3(schema: dict[str, Any]) -> None:
    assert schema["openapi"].startswith("3.")
    validate_schema(schema)


def test_it_is_in_english_whoever_asks_first(schema: dict[str, Any]) -> None:
    openapi.description.cache_clear()
    with translation.override("de"):
        assert openapi.description("ravi/", "") == schema


def test_it_describes_every_address(schema: dict[str, Any]) -> None:
    left_out = {"nothing", "v1-nothing", "decide", "docs", "docs-redoc", "panel"} | {page.name for page in urls.pages}
    wanted = {
        "/ravi/" + str(pattern.pattern).replace("<uuid:", "{").replace("<str:", "{").replace(">", "}")
        for pattern in urls.urlpatterns
        if isinstance(pattern, URLPattern) and pattern.name not in left_out
    }

    assert set(schema["paths"]) == wanted


def operations(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", found) for path, methods in schema["paths"].items() for method, found in methods.items()
    ]


def test_every_call_documents_its_errors(schema: dict[str, Any]) -> None:
    for name, operation in operations(schema):
        for status, answer in operation["responses"].items():
            if int(status) >= 400 and name != "get /ravi/health/":
                for content in answer["content"].values():
                    assert content["schema"] == {"$ref": "#/components/schemas/Error"}, (name, status)
        wanted = {"406", "500"} if "health" in name else {"401", "406", "500"}
        wanted |= {"404"} if "{id}" in name else set()
        wanted |= {"400", "403", "411", "413", "415"} if name.startswith("post") else set()
        if name == "post /ravi/sources/{id}/hook/":  # no login, and any content type
            wanted = {"400", "401", "404", "406", "413", "500", "503"}
        assert wanted <= set(operation["responses"]), name
    assert schema["components"]["schemas"]["Error"]["properties"]["error"] == {"$ref": "#/components/schemas/Problem"}
    assert schema["components"]["schemas"]["Problem"]["required"] == ["code", "message"]


def test_the_pages_of_lists_are_described(schema: dict[str, Any]) -> None:
    answer = schema["paths"]["/ravi/runs/"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    page = schema["components"]["schemas"][answer["$ref"].rsplit("/", 1)[1]]

    assert set(page["properties"]) == {"next", "previous", "results"}
    assert page["properties"]["results"]["items"] == {"$ref": "#/components/schemas/Run"}
    names = {parameter["name"] for parameter in schema["paths"]["/ravi/runs/"]["get"]["parameters"]}
    assert names == {
        *("agent", "created_after", "created_before", "cursor", "limit", "metadata.NAME", "ordering", "owner"),
        *("search", "session", "status"),
    }


def test_bodies_and_values_have_types_that_generators_of_clients_use(schema: dict[str, Any]) -> None:
    described, paths = schema["components"]["schemas"], schema["paths"]

    assert described["Upload"]["properties"]["file"]["format"] == "binary"
    assert described["SessionRename"]["required"] == ["title"]
    assert all(described[name]["additionalProperties"] is False for name in ("RunRequest", "Answer", "Signal"))
    assert described["Signal"]["properties"]["name"]["minLength"] == 1
    assert described["Run"]["properties"]["waiting_on"]["required"] == ["kind", "until"]
    assert {"oneOf", "nullable"} <= set(described["Entry"]["properties"]["request"])
    assert "application/octet-stream" in paths["/ravi/files/{id}/"]["get"]["responses"]["200"]["content"]
    body = paths["/ravi/agui/{type}/{key}/"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"threadId", "runId", "messages"} == set(body["required"]) <= set(body["properties"])
    assert schema["components"]["securitySchemes"]["bearerAuth"]["scheme"] == "bearer"
    for address, methods in paths.items():
        names = {one["name"] for one in methods.get("get", {}).get("parameters", [])}
        assert ("format" in names) == ("metrics" in address), address
        bearer = [{"bearerAuth": []} in one["security"] for one in methods.values()]
        assert all(bearer) == any(bearer) == ("/v1/" in address or "/agui/" in address), address


def test_what_is_answered_is_what_is_described(permitted, schema, client, agent) -> None:
    run = client.post("/ravi/runs/", {"agent": agent, "input": "hi"}, format="json").json()
    follow = client.post("/ravi/follows/", {"agent": agent, "topic": "news/sport"}, format="json").json()
    emitted = client.post("/ravi/topics/news/art/emit/", {"text": "x"}, format="json").json()
    request = asked_by(Run.objects.get())
    described = schema["components"]["schemas"]

    assert set(described["Follow"]["properties"]) == set(follow)
    assert set(described["Emitted"]["properties"]) == set(emitted)
    requests = client.get("/ravi/requests/").json()["results"][0], client.get(f"/ravi/requests/{request.id}/").json()
    for name, row in zip(("Request", "RequestDetail"), requests, strict=True):
        always = set(described[name]["properties"]) - {"hidden", "call_id"}
        assert always == set(described[name]["required"]) == set(row)
    assert set(described["Run"]["properties"]) == set(run)
    assert set(described["Agent"]["properties"]) == set(client.get(f"/ravi/agents/{agent}/").json())
    assert set(described["Session"]["properties"]) == set(client.get("/ravi/sessions/").json()["results"][0])
    assert set(described["RunTree"]["properties"]) == set(client.get(f"/ravi/runs/{run['id']}/tree/").json())


def test_making_it_has_nothing_to_warn_of(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        openapi.description("elsewhere/", "/prefix")  # not made before

    assert capsys.readouterr().err == ""


def test_the_pages_show_it_with_scripts_of_the_site(client: APIClient, anonymous: APIClient) -> None:
    for address, url in (("/ravi/docs/", "../schema/"), ("/ravi/docs/redoc/", "../../schema/")):
        page = client.get(address, headers={"Accept": "text/html"})
        text = page.content.decode()

        assert (page.status_code, page["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert url in text.replace("\\u002D", "-") and urljoin(address, url) == "/ravi/schema/"
        files = re.findall(r'(?:src|href)="([^"]+\.(?:js|css|png))"', text)
        assert files and all(finders.find(file.removeprefix("/static/")) for file in files), files
        assert (anonymous.get(address).status_code, client.post(address).status_code) == (401, 405)


def test_without_the_apps_there_are_no_pages_and_the_description_all_the_same(client, settings, schema) -> None:
    apps = [line for line in DOCS.splitlines() if line.startswith("INSTALLED_APPS += ")]
    named = re.findall(r'"(\w+)"', "".join(apps))
    assert sorted(named) == ["drf_spectacular", "drf_spectacular_sidecar"]
    installed = list(settings.INSTALLED_APPS)
    for missing in (named[:1], named[1:], named):
        settings.INSTALLED_APPS = [app for app in installed if app not in missing]
        for address in ("/ravi/docs/", "/ravi/docs/redoc/"):
            refused = client.get(address, headers={"Accept": "text/html"})
            assert (refused.status_code, error_of(refused)["code"]) == (404, "not_found")
    openapi.description.cache_clear()
    assert client.get("/ravi/schema/").json() == schema


def test_a_few_prefixes_of_the_mount_are_kept() -> None:
    """Below `<slug:tenant>/` each client may ask with a prefix of its own."""
    assert openapi.description.cache_parameters()["maxsize"] < 100
