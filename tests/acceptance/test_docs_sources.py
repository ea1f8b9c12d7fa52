"""What docs/sources.md shows is run here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from ravi_django.models import Run, Source
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.docs import Page
from tests.support.feed_server import FeedServer, serving

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Page("sources")
ITEM = "<item><title>{0}</title><link>https://example.org/{0}</link></item>"


@pytest.fixture
def server() -> Iterator[FeedServer]:
    with serving() as server:
        yield server


def test_the_reader_is_told_until_the_end(server: FeedServer, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "SOURCE_NETWORKS": ["127.0.0.0/8"]}
    PAGE.run("reader/agents.py")
    ann = get_user_model().objects.create_user("ann")
    source = PAGE.run("reader/feeds.py")["read_news"](ann)
    assert (source.location, source.every_s) == ("https://example.org/feed.xml", 900)

    Source.objects.update(location=server.url())
    for titles in (["One"], ["The end", "Two", "One"]):
        body = f'<rss version="2.0"><channel>{"".join(map(ITEM.format, titles))}</channel></rss>'
        server.answers["/feed"] = (200, {}, body.encode())
        world.poll_due()
        run_until_idle()
        Source.objects.update(next_at=None)

    run = Run.objects.get()
    assert (run.status, run.owner) == ("completed", ann)


def test_the_limits_are_as_the_page_says() -> None:
    from ravi_django.capabilities.feeds import parse, xml_scan

    assert (xml_scan.MAX_DEPTH, xml_scan.MAX_ELEMENTS, parse.NEWEST) == (100, 150_000, 200)
    assert (world.LEASE_S, world.BACK_S) == (60, 24 * 3600)
