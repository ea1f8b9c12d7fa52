"""What a webhook source takes, and from whom."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.test import Client

from ravi_django import urls
from ravi_django.models import InboxMessage, Run, Signal, Source, SourceItem
from ravi_django.testing import FakeClock
from ravi_django.wings.feeds.fetching.signatures import sign
from tests.acceptance.api.api_support import AGENT, error_of
from tests.support import world
from tests.support.world import seal, secrets_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def source(user: Any) -> Source:
    return Source.objects.create(name="alerts", kind="webhook", agent=AGENT, owner=user)


@pytest.fixture
def secret(source: Source) -> str:
    return world.make_secret(source)


def post(source: Any, body: Any, secret: str = "", *, at: float | None = None, **headers: str) -> Any:
    """As a server elsewhere does: with no cookie and no token."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if secret:
        headers["X-Ravi-Signature"] = sign(secret, data, int(time.time() if at is None else at))
    client = Client(enforce_csrf_checks=True)
    place = getattr(source, "id", source)
    return client.post(f"/ravi/sources/{place}/hook/", data, content_type="application/json", headers=headers)


def by_github(source: Source, body: bytes, secret: str) -> Any:
    mark = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return post(source, body, **{"X-Hub-Signature-256": f"sha256={mark}", "X-GitHub-Delivery": str(uuid4())})


def test_what_is_signed_starts_a_run_of_the_agent(source: Source, secret: str, user: Any) -> None:
    response = post(source, {"id": 7, "title": "Down", "text": "The shop.", "host": "a"}, secret)

    assert (response.status_code, response.json()) == (202, {"items": 1, "new": 1})
    run = Run.objects.get()
    assert (run.agent, run.owner) == (AGENT, user)
    told = InboxMessage.objects.get(run=run).body["payload"]["data"]
    assert (told["id"], told["title"], told["text"], told["source"]) == ("7", "Down", "The shop.", "alerts")
    assert told["extra"]["body"]["host"] == "a"
    source.refresh_from_db()
    assert source.checked_at is not None


@pytest.mark.parametrize(("limit", "later"), [("unread", "60"), ("a day", "3600")])
def test_what_is_too_much_is_to_come_again_later(source, secret, settings, limit, later) -> None:
    if limit == "unread":
        settings.RAVI = {**settings.RAVI, "SOURCE_UNREAD": 1}
    else:
        Source.objects.update(options={"max_items_a_day": 2})
    post(source, [{"id": 1}, {"id": 2}], secret)

    response = post(source, {"id": 3}, secret)

    assert (response.status_code, response["Retry-After"]) == (503, later)
    assert error_of(response)
    assert SourceItem.objects.count() == 2
    assert post(source, {"id": 2}, secret).status_code == 202, "it is known"
    Signal.objects.update(consumed_at="2026-11-22T12:00:00Z")
    Source.objects.update(options={})
    assert post(source, {"id": 3}, secret).json() == {"items": 1, "new": 1}


def test_an_older_delivery_sent_again_undoes_no_edit(source: Source, secret: str) -> None:
    Source.objects.update(options={"edits": True})
    present = int(time.time())
    first, second = {"id": 1, "text": "one"}, {"id": 1, "text": "two"}
    post(source, first, secret, at=present - 20)
    post(source, second, secret, at=present - 10)

    again = post(source, [first, {"id": 2}], secret, at=present - 20)

    assert (again.status_code, again.json()) == (202, {"items": 2, "new": 1}), "what is new in it is told"
    assert [signal.payload["id"] + signal.payload["text"] for signal in Signal.objects.all()] == ["1two", "2"]
    post(source, first, secret, at=present - 10)
    assert [signal.payload["revision"] for signal in Signal.objects.filter(payload__id="1")] == [2, 3]


def test_a_body_that_cannot_be_meant_is_400_and_names_the_field(source: Source, secret: str) -> None:
    for body, field in (
        (b"1e999", "body"),
        (b'{"id": 1, "x": -1e999}', "x"),
        (b'[{"id": 1}, {"id": 2, "x": {"y": [0, 1e999]}}]', "1.x.y.1"),
        *((bad, "body") for bad in (b"{", b"", b"7", b"[" * 50_000)),
        *((b'[{"id": 1}, 2]', "1"), (b'{"title": {}}', "title")),
    ):
        response = post(source, body, secret)
        assert (response.status_code, error_of(response)["field"]) == (400, field), body[:60]
    assert post(source, b'{"a":' * 20_000 + b"1" + b"}" * 20_000, secret).status_code == 400
    assert not SourceItem.objects.exists()


def test_github_signs_the_body_alone(source: Source, secret: str) -> None:
    body = b'{"action": "opened", "issue": {"title": "It broke", "html_url": "https://github.com/a/b/issues/1"}}'
    assert by_github(source, body, secret).status_code == 401, "the source says ravi"
    Source.objects.update(options={"scheme": "github", "title": "issue.title", "url": "issue.html_url"})

    assert by_github(source, body, secret).json() == {"items": 1, "new": 1}
    assert by_github(source, body, secret).json() == {"items": 1, "new": 0}, "whatever the delivery is called"
    assert post(source, body, secret).status_code == 401
    item = SourceItem.objects.get()
    assert (item.title, item.url) == ("It broke", "https://github.com/a/b/issues/1")


# ------------------------------------------------------------------------------------------------- who may not


def refusals(source: Source, secret: str) -> dict[str, Any]:
    body = {"id": 1}
    other = Source.objects.create(
        name="feed", kind="feed", location="https://example.com", agent=AGENT, secret=seal(secret)
    )
    off = Source.objects.create(name="off", kind="webhook", agent=AGENT, secret=seal(secret), enabled=False)
    bare = Source.objects.create(name="bare", kind="webhook", agent=AGENT)
    return {
        "no signature": post(source, body),
        "another's": post(source, body, "another secret"),
        "too old": post(source, body, secret, at=time.time() - 301),
        "too new": post(source, body, secret, at=time.time() + 302),
        "not what was signed": post(source, b"[]", **{"X-Ravi-Signature": sign(secret, b"{}", int(time.time()))}),
        "nobody": post(uuid4(), body, secret),
        "no webhook": post(other, body, secret),
        "off": post(off, body, secret),
        "no secret yet": post(bare, body, ""),
        "no secret, signed with none": post(bare, body, "x"),
        "not JSON, and not signed": post(source, b"{", "another secret"),
        "nothing": post(source, b""),
    }


def test_whoever_cannot_sign_learns_nothing(source: Source, secret: str, written: Any) -> None:
    before = written()

    given = refusals(source, secret)

    assert {name: response.status_code for name, response in given.items()} == dict.fromkeys(given, 401)
    assert len({response.content for response in given.values()}) == 1
    assert {tuple(sorted(response.headers.items())) for response in given.values()} == {
        tuple(sorted(given["nobody"].headers.items()))
    }
    assert error_of(given["nobody"])["code"] == "unauthenticated"
    assert given["nobody"]["WWW-Authenticate"] == "X-Ravi-Signature"
    assert written() == before and not SourceItem.objects.exists()


def test_a_login_is_no_signature_and_without_one_no_query_is_made(
    source: Source, secret: str, user: Any, root: Any, django_assert_num_queries: Any
) -> None:
    for who in (user, root):
        client = Client()
        client.force_login(who)
        answer = client.post(f"/ravi/sources/{source.id}/hook/", {"id": 1}, content_type="application/json")
        assert answer.status_code == 401
    with django_assert_num_queries(0):
        assert post(source, {"id": 1}).status_code == 401


def test_the_time_is_the_sites_clock(source: Source, secret: str) -> None:
    with FakeClock() as clock:
        at = clock.now.timestamp()
        assert post(source, {"id": 1}, secret, at=at).status_code == 202
        clock.advance(301)
        assert post(source, {"id": 2}, secret, at=at).status_code == 401


# ---------------------------------------------------------------------------------------------------- the body


def test_a_body_that_is_too_big_is_413_for_all(source: Source, secret: str, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "MAX_INPUT_BYTES": 1000}

    for place in (source, uuid4()):
        for signed_with in (secret, ""):
            response = post(place, b" " * 1001, signed_with)
            assert (response.status_code, error_of(response)["code"]) == (413, "too_large")
    assert post(source, b'{"id": 1}' + b" " * 991, secret).status_code == 202


def test_hostile_bodies_are_taken_as_text(source: Source, secret: str) -> None:
    for number, body in enumerate(
        (
            b'{"id": "\\u0000", "text": "a\\u0000b", "k\\u0000": "\\u0000"}',
            b'{"id": 1, "n": 1e300, "m": -0.0}',
            b'{"id": "' + b"x" * 5000 + b'", "title": "' + b"y" * 5000 + b'"}',
            '{"id": "\u202e<script>", "url": "javascript:alert(1)"}'.encode(),
            b'{"a": ' * 150 + b"1" + b"}" * 150,
        ),
        1,
    ):
        response = post(source, body, secret)
        assert response.status_code == 202, response.content
        assert list(SourceItem.objects.values_list("url", flat=True)) == [""] * number, body[:60]


def test_the_content_type_does_not_matter(source: Source, secret: str) -> None:
    body = b'{"id": 1}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        headers = {"X-Ravi-Signature": sign(secret, body, int(time.time()))}
        place = f"/ravi/sources/{source.id}/hook/"
        assert Client().post(place, body, content_type=kind, headers=headers).status_code == 202, kind


def test_when_the_agent_is_not_there_the_sender_is_to_try_again(source: Source, secret: str) -> None:
    Source.objects.update(agent="react/gone")

    response = post(source, {"id": 1}, secret)

    assert (response.status_code, error_of(response)["code"]) == (503, "unavailable")
    assert response["Retry-After"] == "60" and "gone" not in response.content.decode()
    source.refresh_from_db()
    assert "react/gone" in source.error
    Source.objects.update(agent=AGENT)
    assert post(source, {"id": 1}, secret).json()["new"] == 1
    source.refresh_from_db()
    assert source.error == ""


# --------------------------------------------------------------------------------------------------- the secret


def test_two_secrets_are_valid_while_the_sender_changes_over(source: Source, secret: str) -> None:
    second = world.make_secret(source)
    assert [post(source, {"id": one}, one).status_code for one in (secret, second)] == [202, 202]

    third = world.make_secret(source)

    assert [post(source, {"id": f"b{one}"}, one).status_code for one in (secret, second, third)] == [401, 202, 202]
    assert world.forget_old_secret(source)
    assert [post(source, {"id": f"c{one}"}, one).status_code for one in (second, third)] == [401, 202]
    assert not world.forget_old_secret(source)


def test_the_secret_is_in_no_log_and_no_description(source, secret, client, caplog) -> None:
    caplog.set_level(logging.DEBUG)

    texts = [post(source, b"{", secret).content.decode(), post(source, {"id": 1}, "x").content.decode()]
    source.refresh_from_db()
    texts += [repr(source), str(source), client.get("/ravi/schema/").content.decode()]
    texts += [record.getMessage() for record in caplog.records if not record.name.startswith("django.db")]

    assert secrets_of(source) == [secret]
    texts.append(source.secret)
    assert not [text for text in texts if secret in text]


def test_another_secret_key_is_an_error_of_the_source_until_its_secrets_are_rekeyed(
    source: Source, secret: str, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    old = settings.SECRET_KEY
    settings.SECRET_KEY = "the next one"
    assert post(source, {"id": 1}, secret).status_code == 401
    source.refresh_from_db()
    assert "SECRET_KEY_FALLBACKS" in source.error
    with pytest.raises(SystemExit):
        call_command("ravi_doctor", "--rekey")
    assert "rekeyed=0 errors=1" in capsys.readouterr().out

    settings.SECRET_KEY_FALLBACKS = [old]
    assert post(source, {"id": 1}, secret).status_code == 202
    call_command("ravi_doctor", "--rekey")
    settings.SECRET_KEY_FALLBACKS = []

    assert post(source, {"id": 2}, secret).status_code == 202


def test_the_description_says_that_it_needs_no_login(client: Any) -> None:
    assert "source-hook" in {pattern.name for pattern in urls.urlpatterns}
    found = client.get("/ravi/schema/", headers={"Accept": "application/json"}).json()

    described = found["paths"]["/ravi/sources/{id}/hook/"]["post"]
    assert described["security"] == [{}]
    assert {"202", "400", "401", "413", "503"} <= set(described["responses"])
