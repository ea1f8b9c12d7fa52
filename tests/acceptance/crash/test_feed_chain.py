"""From a feed server to many readers, every part a process of its own, and the worker killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import urllib.request
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from project.demo_check import health
from project.feed_server import FeedServer
from project.process import wait_until
from project.services import free_port
from tests.support import forks
from tests.support.columns import KINDS
from tests.support.patience import BOUND_S, seconds
from tests.support.site_process import Site

pytestmark = [pytest.mark.timeout(600), pytest.mark.crash]

ITEMS = 24
START_S = seconds(120)  # bounds for a machine that is busy with much else; a quiet one needs a tenth
PACE_S = 8.0  # at most so long until the next item comes; whether the readers are through with it is asked at the end
GIVE_UP_S = seconds(200)
TOPIC, NOTE = "news/science", "A note for all."
# The demo's own newsroom and reader, and users who follow. More items than a generation has: each run begins anew.
SEED = """
from django.contrib.auth import get_user_model
from django.core.management import call_command
from project import feeds
from ravi_django import follow
from ravi_django.models import Follow, Source
call_command("seed_demo", verbosity=0)
Follow.objects.all().delete()
Source.objects.filter(agent="information/science").update(every_s=1)
Source.objects.exclude(agent="information/science").update(enabled=False)
for number in range(READERS):
    user = get_user_model().objects.create_user(f"reader{number}", password="reader")
    follow(feeds.READER, "news/science", user=user, metadata={"preferences": f"number {number}"})
"""
CURATED = f"""
SELECT r.owner_id, j.result->>'title' AS title, j.result->>'keep' AS keep, j.finished_at AS at
FROM ravi_journalentry j JOIN ravi_run r ON r.id = j.run_id
WHERE j.kind = {KINDS["log"]} AND j.name = 'feed.curated' AND j.result->>'topic' = '{TOPIC}'
"""
# What each generation of the runs that live for ever has come to.
JOURNALS = """
SELECT j.run_id AS run, j.generation, count(*) AS rows FROM ravi_journalentry j JOIN ravi_run r ON r.id = j.run_id
WHERE r.agent IN ('personal_feed/reader', 'information/science') GROUP BY j.run_id, j.generation
"""
LEFT = "SELECT agent, status, count(*) FROM ravi_run GROUP BY agent, status"
ROWS_AN_ITEM = 6  # read, model, log, sleep and wake: whatever the number of items before it


@dataclass(frozen=True, slots=True)
class Size:
    readers: int
    kills: int
    seed: int  # of the moments of the kills


@pytest.fixture
def size() -> Size:
    return Size(readers=10, kills=3, seed=7)


@pytest.fixture
def feed_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FeedServer]:
    with TemporaryDirectory(prefix="ravi-feeds-") as folder, FeedServer(folder, every_s=0) as server:
        monkeypatch.setenv("FEED_SERVER_URL", server.url)
        yield server


@pytest.fixture
def site(feed_server: FeedServer, size: Size) -> Iterator[Site]:
    with TemporaryDirectory(prefix="ravi-chain-") as folder, Site(Path(folder)) as made:
        made.env["RAVI_MODEL"] = ""  # the rehearsal model
        env = {**os.environ, **made.env}
        seed = SEED.replace("READERS", str(size.readers))
        forks.run(["manage.py", "shell", "-c", seed], env=env, check=True, capture_output=True)
        yield made


def start_web(site: Site) -> str:
    port = free_port()
    listen = ("--host", "127.0.0.1", "--port", str(port), "--lifespan", "off")
    # The one `uvicorn` that is no fork.
    site.child("web", "-m", "uvicorn", "project.asgi:application", *listen, from_nothing=True).start()
    return f"http://127.0.0.1:{port}"


def kill_worker(site: Site) -> None:
    worker = site.workers[-1]
    worker.signal(signal.SIGKILL)
    worker.wait_ended(BOUND_S)
    # Time passes for a source whose poller died: nobody waits here for the minutes that it was leased for.
    site.query("UPDATE ravi_source SET polling_until = now() WHERE polling_until > now() RETURNING id")
    site.replace(worker)


def emit(address: str, text: str, id: str) -> dict[str, Any]:
    credentials = b64encode(b"demo:demo").decode()
    request = urllib.request.Request(
        f"{address}/ravi/topics/{TOPIC}/emit/",
        data=json.dumps({"text": text, "id": id}).encode(),
        headers={"Authorization": f"Basic {credentials}", "Content-Type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=BOUND_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_every_item_comes_to_every_reader_once_though_the_worker_is_killed(site, feed_server, size, capsys) -> None:
    chance = random.Random(size.seed)
    address = start_web(site)
    site.start_worker("-P", "threads", "-c", "50")
    assert wait_until(lambda: health(address), START_S, poll=0.1), "the site is not healthy"
    killing = sorted(chance.sample(range(1, ITEMS), size.kills))

    def rows(*titles: str) -> list[dict[str, Any]]:
        return [row for row in site.query(CURATED) if row["title"] in titles]

    told: dict[str, float] = {}
    for number in range(ITEMS):
        told[title := f"Item number {number}"] = time.time()
        feed_server.publish("science", title, f"It is number {number}. And more.")
        enough = chance.choice([0, 1, size.readers // 2])  # readers that are through with it: then the next one comes
        wait_until(lambda: len(rows(title)) >= enough, PACE_S, poll=0.1)
        if number in killing:
            kill_worker(site)
    repeats = [emit(address, NOTE, "note") for _ in range(2)]
    titles = [*told, NOTE]
    expected = size.readers * len(titles)

    complete = wait_until(lambda: len(rows(*titles)) >= expected, GIVE_UP_S, poll=0.2)
    found = rows(*titles)

    counts = Counter((row["owner_id"], row["title"]) for row in found)
    assert complete, f"seed {size.seed}: {len(found)} of {expected} were curated; {site.query(LEFT)}"
    assert (len(counts), set(counts.values())) == (expected, {1}), f"seed {size.seed}"
    assert repeats[0] == repeats[1] == {"message": "note", "followers": size.readers}
    assert not site.query("SELECT id, error FROM ravi_run WHERE status NOT IN ('suspended', 'pending', 'running')")
    kept = Counter(row["title"] for row in found if row["keep"] == "true")
    assert kept == Counter({f"Item number {number}": 1 for number in range(size.readers)}), (
        "each by its own reader alone"
    )
    journals = site.query(JOURNALS)
    anew = {row["run"] for row in journals if row["generation"] >= 1}
    assert len(anew) == size.readers + 1, "the readers and the newsroom have begun anew"
    longest = max(row["rows"] for row in journals)
    with capsys.disabled():
        print(f"\n{_figures(found, told, size.readers)}; longest journal {longest} rows; {size}")
    assert longest <= 21 * ROWS_AN_ITEM + size.kills * 5


def _figures(found: list[dict[str, Any]], told: dict[str, float], readers: int) -> str:
    """From an item's publication at the feed server until the last reader has curated it, kills and all."""
    last: dict[str, float] = {}
    for row in found:
        last[row["title"]] = max(last.get(row["title"], 0.0), row["at"].timestamp())
    took = [at - told[title] for title, at in last.items() if title in told]
    return f"published → last of {readers} readers: p50 {median(took):.2f} s, p95 {quantiles(took, n=20)[-1]:.2f} s"
