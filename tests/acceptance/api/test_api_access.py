"""Who may come in, and what everybody else is told."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import RequestDataTooBig
from django.core.files.base import ContentFile
from django.db import OperationalError, connection
from django.test import Client, override_settings
from django.urls import URLPattern
from rest_framework.authentication import BaseAuthentication
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient
from rest_framework.throttling import BaseThrottle

import ravi_django
from ravi_django import urls
from ravi_django.api.base import ApiView
from ravi_django.api.runs import RunViewSet
from tests.acceptance.api.api_support import AGENT, client_of, error_of
from tests.support.asked import asked_by
from tests.support.cases import case
from tests.support.patience import BOUND_S
from tests.support.runs import on_postgresql
from tests.support.world import submit

pytestmark = pytest.mark.django_db


def addresses(run: Any = None, pages: bool = False, **rows: Any) -> dict[str, str]:
    """An address for each pattern of the app, by the pattern's name; ids are made up where none are given."""
    parts = {"token": "none", "type": "react", "key": "api-helper", "source": "sport", "namespace": "ns"}
    found = {}
    for pattern in urls.urlpatterns:
        assert isinstance(pattern, URLPattern)
        is_page = pattern.name in ("decide", "panel") or pattern in urls.pages
        if is_page and not pages:  # for people: test_decide_page.py, test_chat_page.py
            continue
        if str(pattern.name).startswith(("v1-", "agui")):  # test_api_openai.py, test_api_agui.py
            continue
        route = {"nothing": "no/such/path", "no-page": "ui/no/such/page/"}.get(pattern.name, str(pattern.pattern))
        noun = str(pattern.name).split("-")[0]
        one = rows.get(noun, run)
        for name, value in {**parts, "id": str(one or uuid4())}.items():
            route = route.replace(f"<str:{name}>", value).replace(f"<uuid:{name}>", value)
        assert "<" not in route, f"{route}: the test knows no value for it"
        found[str(pattern.name)] = f"/ravi/{route}"
    return found


def test_every_page_of_the_app_has_a_strict_policy(user: Any, root: Any, settings: Any) -> None:
    """Of each address that answers with HTML: as a page, an error, a login and a wrong method."""
    settings.MIDDLEWARE = [one for one in settings.MIDDLEWARE if one != "project.views.PrivatePages"]
    run = submit(AGENT, "hi", user=user)
    every = addresses(run.id, pages=True, chat=run.session_id)
    pages = set()
    for visitor in (root, user, None):
        client = Client()
        if visitor:
            client.force_login(visitor)
        for name, address in every.items():
            for method in ("get", "post"):
                found = getattr(client, method)(address, headers={"Accept": "text/html,*/*"})
                if found["Content-Type"].startswith("text/html"):
                    pages.add((name, found.status_code))
                    policy = found["Content-Security-Policy"]
                    assert "default-src 'self'" in policy or "default-src 'none'" in policy, (name, method)
                    assert "unsafe" not in policy or name in ("docs", "docs-redoc"), (name, method)  # of their scripts
    assert pages >= {("dashboard", 200), ("dashboard", 404), ("panel", 200), ("run-page", 200), ("no-page", 404)}
    assert pages >= {("chat-session", 200), ("decide", 404), ("docs", 200), ("home", 302), ("panel", 405)}


def test_somebody_elses_id_is_as_absent_as_one_that_never_was(user, strange_client, written) -> None:
    run = submit(AGENT, "hi", user=user)
    question = asked_by(run)
    follow, _ = ravi_django.follow(AGENT, "news/sport", user=user)
    sent = {"file": ContentFile(b"hi", "a.txt")}
    file = client_of(user).post("/ravi/files/", sent, format="multipart").json()["id"]
    rows = {"session": run.session_id, "request": question.id, "follow": follow.id, "file": file}
    own, nobodys = addresses(run.id, **rows), addresses()
    bodies = {"session-messages": {"text": "hi"}, "session-detail": {"title": "hi"}}
    before, misfits = written(), []

    for name in (name for name, address in nobodys.items() if address != addresses()[name]):  # with an id
        for method in ("get", "post", "patch", "delete"):
            call = getattr(strange_client, method)
            body = {"data": bodies.get(name, {}), "format": "json"} if method in ("post", "patch") else {}
            found = [call(address, **body) for address in (own[name], nobodys[name])]
            error_of(found[0])
            # 405: no method of that name, whosever it is. A hook is 401 for everybody: test_api_hooks.py
            expected = (401,) if (name, method) == ("source-hook", "post") else (404, 405)
            codes = [one.status_code for one in found]
            if codes[0] not in expected or codes[0] != codes[1]:
                misfits.append((name, method, codes))
        page = client_of(user).get(own[name], headers={"Accept": "application/json"})
        if page.streaming:
            page.getvalue()  # to the end, which closes the file
        if page.status_code not in (200, 405):
            misfits.append((name, "the owner's", page.status_code))
    assert misfits == []
    assert written() == before


# ---------------------------------------------------------------------------------------------- credentials


def test_a_token_of_an_active_user_lets_in(user: Any) -> None:
    key = Token.objects.create(user=user).key

    for header in ("Token nonsense", "Token", "Basic bm9uc2Vuc2U=", "Basic !"):
        response = Client().get("/ravi/runs/", headers={"Authorization": header})
        assert (response.status_code, error_of(response)["code"]) == (401, "unauthenticated"), header
        assert response["WWW-Authenticate"]
    assert Client().get("/ravi/runs/", headers={"Authorization": f"Token {key}"}).status_code == 200
    user.is_active = False
    user.save()
    assert Client().get("/ravi/runs/", headers={"Authorization": f"Token {key}"}).status_code == 401


def test_a_401_says_what_the_site_accepts(settings: Any) -> None:
    def said() -> str:
        return str(error_of(Client().get("/ravi/runs/"))["message"])

    page = "the session cookie and X-CSRFToken of a page of this site"
    settings.RAVI = {**settings.RAVI, "API_AUTHENTICATION": None}
    assert said() == f"no credentials: send the header Authorization: Token … or {page}"
    settings.RAVI = {**settings.RAVI, "API_AUTHENTICATION": ["rest_framework.authentication.SessionAuthentication"]}
    assert said() == (
        f"no credentials: send {page}; for programs add rest_framework.authtoken to INSTALLED_APPS and make a token"
    )


def test_a_session_needs_the_csrf_token_to_write(user: Any, agent: str, written: Any) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user)
    before = written()

    response = browser.post("/ravi/runs/", {"agent": agent, "input": "hi"}, content_type="application/json")

    assert browser.get("/ravi/runs/").status_code == 200
    assert (response.status_code, error_of(response)["code"]) == (403, "forbidden")
    assert written() == before


def test_the_default_classes_challenge_too(settings: Any, user: Any) -> None:
    token, session = "Token", 'Session realm="api"'
    apps = settings.INSTALLED_APPS
    without_tokens = [app for app in apps if app != "rest_framework.authtoken"]
    by_session = {"API_AUTHENTICATION": ["rest_framework.authentication.SessionAuthentication"]}
    browser = Client()
    browser.force_login(user)
    for site, rest, installed, challenge in (
        ({}, None, apps, token),
        (by_session, None, apps, session),
        ({}, None, without_tokens, session),
        *(({"API_AUTHENTICATION": empty}, {"DEFAULT_AUTHENTICATION_CLASSES": []}, apps, token) for empty in (None, [])),
    ):
        with case(site, rest, challenge):
            settings.RAVI, settings.INSTALLED_APPS = site, installed
            if rest is not None:
                settings.REST_FRAMEWORK = rest
            assert browser.get("/ravi/runs/").status_code == 200
            for header in ({}, {"Authorization": "Basic YW5uOmFubg=="}, {"Authorization": "Token x"}):
                response = Client().get("/ravi/runs/", headers=header)
                assert (response.status_code, response["WWW-Authenticate"]) == (401, challenge), header


class ByHeader(BaseAuthentication):
    """A site's own."""

    def authenticate(self, request: Any) -> Any:
        found = get_user_model().objects.filter(username=request.headers.get("X-User")).first()
        return None if found is None else (found, None)

    def authenticate_header(self, request: Any) -> str:
        return "Header"


def test_the_sites_own_classes_are_the_default(settings: Any, user: Any) -> None:
    def answers() -> list[int]:
        headers = ({"X-User": user.username}, {"Authorization": f"Token {token}"})
        return [Client().get("/ravi/runs/", headers=given).status_code for given in headers]

    token = Token.objects.create(user=user).key
    settings.RAVI = {}
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [f"{__name__}.ByHeader"]}

    assert answers() == [200, 401]
    assert Client().get("/ravi/runs/")["WWW-Authenticate"] == "Header"
    settings.RAVI = {"API_AUTHENTICATION": ["rest_framework.authentication.TokenAuthentication"]}
    assert answers() == [401, 200]
    assert Client().get("/ravi/runs/")["WWW-Authenticate"] == "Token"


class NeverAgain(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return False


def test_the_sites_throttles_are_for_users_alone(user: Any, client: APIClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(ApiView, "throttle_classes", [NeverAgain])

    assert client.get("/ravi/runs/").status_code == 429
    assert Client().get("/ravi/health/").status_code in (200, 503)
    assert Client().post(f"/ravi/sources/{uuid4()}/hook/").status_code == 401


def test_the_sites_own_rest_settings_do_not_reach_us(user: Any) -> None:
    theirs = {
        "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.BrowsableAPIRenderer"],
        "EXCEPTION_HANDLER": "no.such.handler",
        "DATETIME_FORMAT": "%d.%m.%Y",
    }
    with override_settings(REST_FRAMEWORK=theirs):
        assert error_of(Client().get("/ravi/runs/"))["code"] == "unauthenticated"
        assert client_of(user).get("/ravi/runs/").status_code == 200


# ---------------------------------------------------------------------------------------------------- shape


def test_an_unmatched_path_is_404(client: APIClient) -> None:
    for path in (
        *("nope", "nope/", "runs/nonsense/", "runs/1/", "runs/nonsense/journal/", "runs/x/y/z", "sessions/1/"),
        *("agents/react/", "agents/a/b/c/d/", "runs//", "%0A", "runs/%00/", "tickets/1/", "agents/%0A/x/"),
    ):
        for method in ("get", "post", "put", "delete", "options"):
            response = getattr(client, method)(f"/ravi/{path}")
            found = (response.status_code, error_of(response)["code"])
            assert found == (404, "not_found") or (method != "get" and found == (405, "method_not_allowed")), path
    assert "slash" in error_of(client.get("/ravi/runs"))["message"]
    assert "slash" not in error_of(client.get("/ravi/walks"))["message"]


NOT_POSSIBLE = [(405, "method_not_allowed"), (406, "not_acceptable")]


def test_a_method_that_is_not_there_is_405_and_what_cannot_be_accepted_406(client: APIClient) -> None:
    for name, address in addresses().items():
        response = client.put(address)
        if name in ("nothing", "run-feedback"):
            assert response.status_code == 404
        else:
            assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed"), name
            assert response["Allow"]
        response = client.get(address, headers={"Accept": "application/xml"})
        if name == "file-detail":  # of any type
            assert response.status_code == 404
            continue
        assert (response.status_code, error_of(response)["code"]) in NOT_POSSIBLE, name
    assert client.get("/ravi/runs/", headers={"Accept": "application/xml"}).status_code == 406
    for method in (client.post, client_of().post):  # before the ticket, the topic and the credentials
        assert method("/ravi/topics/no/topic/events/?ticket=1&run=none").status_code == 405
    accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    response = client.get("/ravi/runs/", headers={"Accept": accept})
    assert (response.status_code, response["Cache-Control"]) == (200, "no-store")


def test_a_fault_of_ours_is_logged_and_not_shown(client, monkeypatch, caplog) -> None:
    monkeypatch.setattr(RunViewSet, "list", Mock(side_effect=RuntimeError("the password is tiger")))
    caplog.set_level(logging.ERROR, "django.request")

    response = client.get("/ravi/runs/")

    assert (response.status_code, error_of(response)["code"]) == (500, "internal")
    assert b"tiger" not in response.content
    (record,) = [record for record in caplog.records if record.name == "django.request"]
    assert record.exc_info and "tiger" in str(record.exc_info[1])


def test_what_django_raises_has_our_shape(client: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status, code in (
        (RequestDataTooBig("over DATA_UPLOAD_MAX_MEMORY_SIZE"), 413, "too_large"),
        (OperationalError("the database is away"), 503, "unavailable"),
    ):
        monkeypatch.setattr(RunViewSet, "create", Mock(side_effect=error))
        response = client.post("/ravi/runs/", {}, format="json")
        assert (response.status_code, error_of(response)["code"]) == (status, code)


@on_postgresql
def test_a_database_that_refuses_writes_asks_for_another_try(client: APIClient) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")  # as in a failover

    response = client.post("/ravi/runs/", {"agent": AGENT, "input": "hi"}, format="json")

    assert (response.status_code, error_of(response)["code"], response.get("Retry-After")) == (503, "unavailable", "1")


def test_a_wsgi_server_refuses_a_body_in_chunks_and_does_not_lose_it(client: APIClient, written: Any) -> None:
    before = written()

    response = client.post("/ravi/sessions/", headers={"Transfer-Encoding": "chunked"})

    assert (response.status_code, error_of(response)["code"]) == (411, "length_required")
    assert written() == before


@pytest.mark.django_db(transaction=True)
def test_a_body_in_chunks_is_read_under_asgi_up_to_the_bound(server: str, key: str, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 1024}
    form = [b"--x\r\nContent-Disposition: form-data; name=file; filename=a.txt\r\n\r\n", b"text\r\n--x--\r\n"]

    def answered(path: str, kind: str, *chunks: bytes) -> tuple[int, dict[str, Any]]:
        connection = HTTPConnection(server.removeprefix("http://"), timeout=BOUND_S)
        headers = {"Authorization": f"Token {key}", "Content-Type": kind, "Transfer-Encoding": "chunked"}
        with closing(connection):
            connection.request("POST", f"/ravi/{path}/", iter(chunks), headers, encode_chunked=True)
            answer = connection.getresponse()
            return answer.status, json.load(answer)

    status, made = answered("sessions", "application/json", b'{"title": ', b'"in chunks"}')
    assert (status, made["title"]) == (201, "in chunks")
    status, file = answered("files", "multipart/form-data; boundary=x", *form)
    assert (status, file["size"]) == (201, 4)
    status, refused = answered("sessions", "application/json", b'{"title": "', *[b"x" * 1024] * 80, b'"}')
    assert (status, refused["error"]["code"]) == (413, "too_large")


def test_a_made_up_cursor_and_a_format_are_no_fault_of_ours(client: APIClient) -> None:
    for name in ("runs", "sessions", "requests", "follows", "usage"):
        response = client.get(f"/ravi/{name}/?cursor=cD0lMDA=")  # p=%00
        assert (response.status_code, error_of(response)["field"]) == (400, "cursor"), name
        assert client.get(f"/ravi/{name}/?format=xml").status_code == 200, name


def test_an_error_repeats_little_of_what_was_sent(client: APIClient) -> None:
    response = client.post("/ravi/runs/", {"agent": "x" * 300_000, "input": "hi"}, format="json")

    assert response.status_code == 400
    assert len(error_of(response)["message"]) == 1000
