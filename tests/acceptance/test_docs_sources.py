"""What the pages sources, webhooks and adapters show is run here."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import transaction
from django.db.models.signals import post_save
from django.test import Client

from project.models import Invoice
from ravi_django.kernel import AgentId
from ravi_django.models import InboxMessage, Publication, Run, Schedule, Signal, Source
from ravi_django.schedules import run_now
from ravi_django.testing import run_until_idle
from ravi_django.wings.feeds.fetching import adapter
from tests.support import world
from tests.support.docs import Page
from tests.support.feed_server import serving

pytestmark = pytest.mark.django_db(transaction=True)

PAGE, HOOKS = Page("sources"), Page("webhooks")
ITEM = "<item><title>{0}</title><link>https://example.org/{0}</link></item>"


class Reader:
    def __init__(self, address: str) -> None:
        self.id = AgentId.parse(address)

    async def run(self, ctx: Any, inbox: Any) -> str:
        return ""


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "background_hint")
    world.patch(monkeypatch, "adapters_by_kind", {})
    for address in ("test/reader", "react/helper", "personal_feed/reader"):
        world.register(Reader(address))


@pytest.fixture
def user(django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ann")


def told() -> list[dict[str, Any]]:
    boots = [row.body["payload"]["data"] for row in InboxMessage.objects.order_by("id")]
    return boots + [signal.payload for signal in Signal.objects.order_by("id")]


def test_the_senders_code_is_understood(user: Any) -> None:
    PAGE.run("shop/agents/reader.py")
    place, secret = HOOKS.run("shop/hooks.py")["add_alerts"](user)
    body = json.dumps({"event": {"id": "e1", "what": "down", "host": "a"}, "other": 1}).encode()
    headers = HOOKS.run("sender.py")["signed"](secret, body)
    kind = headers.pop("Content-Type")

    answers = [Client().post(place, body, content_type=kind, headers=headers) for _ in range(2)]

    assert [(answer.status_code, answer.json()) for answer in answers] == [
        (202, {"items": 1, "new": 1}),
        (202, {"items": 1, "new": 0}),
    ]
    assert [(one["id"], one["title"], one["extra"]) for one in told()] == [("e1", "down", {"event.host": "a"})]


def test_the_pages_receiver_publishes_a_save_with_its_transaction(user: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "shop.models", models := ModuleType("shop.models"))
    models.Invoice = Invoice  # type: ignore[attr-defined]
    names = PAGE.run("shop/agents/invoices.py")
    names["subscribe"](user)
    try:
        with transaction.atomic():
            Invoice.objects.create(customer="ACME", amount=5, idempotency_key="k")
            transaction.set_rollback(True)
        Invoice.objects.create(customer="ACME", amount=7, idempotency_key="l")
        world.fan_out_run(Publication.objects.get().id)
        run_until_idle()
    finally:
        post_save.disconnect(names["publish"], sender=Invoice)

    assert [(one["amount"], one["created"]) for one in told()] == [("7", True)]


def test_the_pages_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = PAGE.run("shop/agents/folder.py")
    monkeypatch.setitem(names, "FOLDER", tmp_path)
    (tmp_path / "done").mkdir()
    names["set_up"]()
    for text in ("Hello", "Hello again"):
        (tmp_path / "a.txt").write_text(text)
        run_now(Schedule.objects.get())
        run_until_idle()

    bodies = InboxMessage.objects.filter(run__agent="react/helper").order_by("id").values_list("body", flat=True)
    assert [str(body).count("Hello again") for body in bodies] == [0, 1] and (tmp_path / "done" / "a.txt").exists()


class FakeX(BaseHTTPRequestHandler):
    asked: list[dict[str, Any]] = []
    status = 200

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        type(self).asked.append({**query, "path": urlsplit(self.path).path, "key": self.headers["Authorization"]})
        since = int(query.get("since_id", 0))
        posts = [
            {"id": str(n), "text": f"Post {n}", "created_at": "2026-01-01T00:00:00Z"} for n in (3, 2, 1) if n > since
        ]
        body = {"data": posts, "meta": {"newest_id": "3"}} if posts else {"meta": {"result_count": 0}}
        self.send_response(type(self).status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def x_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("X_BEARER_TOKEN", "a-key")
    monkeypatch.setattr(FakeX, "asked", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeX)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_pages_adapter_reads_its_server(x_server: str, user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Page("adapters").run("shop/agents/x_source.py")
    assert adapter.find_source_adapter("x")
    adapter.register_source_adapter("x", names["XSearch"](x_server))
    source = world.add_source("adapter", "x", "test/reader", user=user, options={"query": "django"})

    for _ in range(2):
        world.poll_due()
        Source.objects.update(next_at=None)

    source.refresh_from_db()
    assert source.error == "" and source.options["state"] == {"since_id": "3"}
    assert [one["title"] for one in told()] == ["Post 1", "Post 2", "Post 3"]
    assert told()[0]["url"] == "https://x.com/i/web/status/1"
    first, second = FakeX.asked
    assert first["path"] == "/2/tweets/search/recent" and first["key"] == "Bearer a-key" and "since_id" not in first
    assert (second["since_id"], second["query"]) == ("3", "django")
    monkeypatch.setattr(FakeX, "status", 429)
    world.poll_due()
    source.refresh_from_db()
    assert source.error == "X: too many requests" and (source.next_at - source.checked_at).total_seconds() >= 900


def test_the_reader_gets_items_until_the_end(user: Any, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "SOURCE_NETWORKS": ["127.0.0.0/8"]}
    PAGE.run("shop/agents/reader.py")
    source = PAGE.run("shop/feeds.py")["read_news"](user)
    assert (source.location, source.every_s) == ("https://example.org/feed.xml", 900)

    with serving() as server:
        Source.objects.update(location=server.url())
        for titles in (["One"], ["The end", "Two", "One"]):
            body = f'<rss version="2.0"><channel>{"".join(map(ITEM.format, titles))}</channel></rss>'
            server.answers["/feed"] = (200, {}, body.encode())
            world.poll_due()
            run_until_idle()
            Source.objects.update(next_at=None)

    run = Run.objects.get()
    assert (run.status, run.owner) == ("completed", user)


def test_the_limits_are_as_the_page_says() -> None:
    from ravi_django.wings.feeds.fetching import parse, xml_scan

    assert (xml_scan.MAX_DEPTH, xml_scan.MAX_ELEMENTS, parse.NEWEST) == (100, 150_000, 200)
    assert (world.LEASE_S, world.BACK_S) == (60, 24 * 3600)
