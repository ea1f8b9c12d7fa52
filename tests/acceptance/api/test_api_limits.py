"""RAVI["LIMITS"] over REST, and the counters that sockets share."""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.cache import caches
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from rest_framework.test import APIClient

import ravi_django
from ravi_django.conf import DEFAULTS
from ravi_django.kernel import RateLimitedError
from ravi_django.models import Publication, RaviFile, Run, Session, Status, Turn
from tests.acceptance.api.api_support import RUNSERVER, client_of, drive, error_of
from tests.support import world
from tests.support.world import submit

pytestmark = pytest.mark.django_db

NOW = 1_800_000_015.0  # 15 s into a minute


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Any:
    """Sets the time; the counters are empty."""
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "limits"}}
    caches["default"].clear()
    monkeypatch.setattr("time.time", lambda: NOW)
    return lambda later: monkeypatch.setattr("time.time", lambda: NOW + later)


@pytest.fixture
def limited(settings: Any, now: Any) -> Any:
    def limit(**given: Any) -> None:
        settings.RAVI = {**settings.RAVI, "LIMITS": {**dict.fromkeys(DEFAULTS["LIMITS"]), **given}}

    return limit


def unlimited(user: Any) -> Any:
    """The user, who has the permission."""
    kind = ContentType.objects.get_for_model(Run)
    new = {"content_type": kind, "name": "Unlimited"}
    may, _ = Permission.objects.get_or_create(codename="unlimited", defaults=new)
    user.user_permissions.add(may)
    return type(user).objects.get(pk=user.pk)


def test_they_are_on_by_default(settings: Any) -> None:
    settings.RAVI = {name: value for name, value in settings.RAVI.items() if name != "LIMITS"}

    assert {name: world.limits_limit(name) for name in DEFAULTS["LIMITS"]} == {
        **{"submit": 60, "signals": 120, "fork": 20, "emit": 30, "tickets": 120, "emit_deliveries": 1000},
        **{
            "fork_bytes": 50 * 1024 * 1024,
            "follows": 60,
            "files": 60,
            "sessions": 60,
            "sockets": 20,
            "streams": 20,
            "queued_runs": 100,
        },
    }


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("submit", ["runs/", "sessions/{run.session_id}/messages/", "runs/{run.id}/retry/"]),
        ("signals", ["runs/{run.id}/signals/"] * 3),
        ("fork", ["runs/{run.id}/fork/"] * 3),
        ("emit", ["topics/news/sport/emit/"] * 3),
        ("tickets", ["tickets/"] * 3),
        ("follows", ["follows/", "DELETE follows/{run.id}/", "DELETE follows/{run.id}/"]),
        ("sessions", ["sessions/", "PATCH sessions/{run.session_id}/", "DELETE sessions/{run.session_id}/"]),
    ],
)
def test_a_call_too_many_is_a_429_until_the_minute_is_over(
    client: APIClient, strange_client: APIClient, user: Any, agent: str, limited: Any, now: Any, name: str, calls: Any
) -> None:
    run = submit(agent, "hi", user=user)
    limited(**{name: 2})
    calls = [call.format(run=run).rpartition(" ") for call in calls]

    def make(by: APIClient, call: Any) -> Any:  # with a bad body: a call counts whatever it says
        return by.generic(call[0] or "POST", f"/ravi/{call[2]}", '{"nonsense": 1}', "application/json")

    answers = [make(client, call) for call in calls]

    assert 429 not in [answer.status_code for answer in answers[:2]]
    assert (answers[2].status_code, answers[2]["Retry-After"], error_of(answers[2])["code"]) == (429, "45", "throttled")
    assert make(strange_client, calls[2]).status_code != 429
    now(45)
    assert make(client, calls[2]).status_code != 429


def test_holders_of_the_permission_are_not_limited(user: Any, agent: str, limited: Any) -> None:
    limited(tickets=1)

    codes = [client_of(unlimited(user)).post("/ravi/tickets/").status_code for _ in range(3)]

    assert codes == [201] * 3


def test_a_queue_has_an_end(client: APIClient, user: Any, agent: str, limited: Any) -> None:
    session = submit(agent, "hi", user=user).session_id
    limited(queued_runs=1)
    say = f"/ravi/sessions/{session}/messages/"

    answers = [client.post(say, {"text": "more", "agent": agent}, format="json") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 429]
    assert Run.objects.filter(status=Status.QUEUED).count() == 1


@pytest.mark.django_db(transaction=True)
def test_forks_copy_so_many_bytes_an_hour_and_none_through_memory(
    client: APIClient, strange_client: APIClient, user: Any, agent: str, limited: Any, now: Any, monkeypatch: Any
) -> None:
    session = world.create_session(Session(owner=user, next_position=61))
    run = submit(agent, "hi", user=user, session=session)
    drive(str(run.id))
    world.silence(monkeypatch, "dispatch_send")
    file = RaviFile.objects.create(owner=user, size=1)
    file.sessions.add(session)
    said = [[{"type": "text", "text": letter * 256 * 1024}] for letter in "ab" * 30]
    said.append([{"type": "image", "file": str(file.id)}])
    turn = {"session": session, "agent": agent, "role": "user"}
    Turn.objects.bulk_create(Turn(position=place, content=content, **turn) for place, content in enumerate(said))
    limited(fork_bytes=50 * 1024 * 1024)

    def fork(by: APIClient = client, **body: Any) -> Any:
        return by.post(f"/ravi/runs/{run.id}/fork/", body, format="json")

    fork(input="warm")
    tracemalloc.start()
    answers = [fork(input="again") for _ in range(3)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert [answer.status_code for answer in answers] == [201, 201, 429]
    assert (answers[2]["Retry-After"], "bytes" in error_of(answers[2])["message"]) == ("3585", True)
    assert peak < 8 * 1024 * 1024
    copy = Turn.objects.filter(session=answers[0].json()["session"]).order_by("position")
    assert [row.content for row in copy] == said
    assert file.sessions.count() == 4
    limited(fork_bytes=15 * 1024 * 1024)
    now(3585)
    assert fork(input="x").status_code == 429
    limited()
    assert fork(client_of(unlimited(user)), input="x").status_code == 201
    assert fork(strange_client, input="x").status_code == 404


def test_a_larger_fan_out_goes_on_in_later_minutes(
    permitted: None, client: APIClient, user: Any, stranger: Any, agent: str, limited: Any, now: Any, settings: Any
) -> None:
    limited(emit_deliveries=2)
    settings.RAVI = {**settings.RAVI, "SWEEP_S": 0}
    for _ in range(5):
        session = world.create_session(Session(owner=stranger))
        ravi_django.follow(agent, "news/sport", user=stranger, session=session)

    client.post("/ravi/topics/news/sport/emit/", {"text": "goal"}, format="json")
    row = Publication.objects.get()
    seen = []
    for later in (0, 1, 45, 105):
        now(later)
        world.fan_out_run(row.id)
        world.fan_out_sweep()
        row.refresh_from_db()
        seen.append((row.delivered, row.done_at is not None))
    world.fan_out_run(ravi_django.emit("news/sport", "the site's own").id)

    assert seen == [(2, False), (2, False), (4, False), (5, True)]
    assert Publication.objects.latest("id").delivered == 5
    assert world.limits_take(user, "emit_deliveries", 2) == 1


def test_many_processes_have_one_count_on_few_connections(
    user: Any, limited: Any, settings: Any, valkey_url: str
) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": valkey_url}}
    limited(signals=10, sockets=5)

    def passes(_: int) -> tuple[bool, bool]:
        found = []
        for ask in (world.limits_count, world.open_one):
            try:
                ask(user, "signals" if ask is world.limits_count else "sockets")
                found.append(True)
            except RateLimitedError:
                found.append(False)
        return found[0], found[1]

    user.has_perm = lambda name: False
    with redis.Redis.from_url(valkey_url) as server, ThreadPoolExecutor(40) as pool:
        before = len(server.client_list(_type="normal"))
        gc.disable()  # it would close the connections that requests have left
        try:
            found = list(pool.map(lambda number: Context().run(passes, number), range(40)))
            connections = len(server.client_list(_type="normal"))
        finally:
            gc.enable()

    assert [sum(column) for column in zip(*found, strict=True)] == [10, 5]
    assert connections <= before + 20, "40 requests share them"


def test_a_killed_process_gives_its_places_back_and_a_living_one_keeps_them(user: Any, limited: Any, now: Any) -> None:
    limited(sockets=2)
    kept, killed = world.open_one(user, "sockets"), world.open_one(user, "sockets")
    with pytest.raises(RateLimitedError):
        world.open_one(user, "sockets")

    now(world.OPEN_S - 1)
    async_to_sync(world.streams_look)([world.OpenStream(user.pk, world.Credential(), kept)])  # as it does now and then
    now(world.OPEN_S + 1)

    assert world.open_one(user, "sockets") == killed
    with pytest.raises(RateLimitedError):
        world.open_one(user, "sockets")
    world.close_one(kept)
    assert world.open_one(user, "sockets") == kept


@pytest.mark.django_db(transaction=True)
def test_event_streams_have_places(client: APIClient, user: Any, agent: str, limited: Any) -> None:
    events = f"/ravi/runs/{submit(agent, 'hi', user=user).id}/events/"
    limited(streams=1)
    first = client.get(events, **RUNSERVER)

    as_json = client.get(events, headers={"Accept": "application/json"})
    assert (client.get(events, **RUNSERVER).status_code, as_json.status_code) == (429, 200)
    next(iter(first))
    first.close()
    assert client.get(events, **RUNSERVER).status_code == 200


def test_a_cache_that_fails_stops_nobody(client: APIClient, limited: Any, settings: Any) -> None:
    limited(tickets=1)
    nowhere = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {"default": nowhere}

    assert [client.post("/ravi/tickets/").status_code for _ in range(2)] == [201, 201]


def test_a_wrong_setting_is_found(settings: Any, capsys: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    site = settings.RAVI
    for changed, id in (
        *(({"LIMITS": bad}, "ravi.E030") for bad in ({"submits": 5}, {"submit": 0})),
        ({"SOCKET_ORIGINS": ["app.example.com"]}, "ravi.E031"),
    ):
        settings.RAVI = {**site, **changed}
        with pytest.raises(SystemCheckError, match=id):
            call_command("check")
    settings.RAVI = {**site, "LIMITS": {}, "ENGINE": "celery"}
    call_command("check")
    assert "ravi.W030" in capsys.readouterr().err
    for wings, is_said in ((["protocols"], True), ([], False)):
        settings.RAVI = {**site, "LIMITS": None, "ENGINE": "celery", "WINGS": wings}
        call_command("check")
        assert ("repeats are not recognised" in capsys.readouterr().err) is is_said
