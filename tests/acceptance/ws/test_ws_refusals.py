"""Who does not get in, and how a socket says so: accepted first, then closed with the code."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator  # channels.testing wants daphne installed
from channels.routing import URLRouter
from django.utils import timezone

from ravi_django.models import Ticket
from ravi_django.routing import websocket_urlpatterns
from tests.support import world
from tests.support.patience import BOUND_S, seconds
from tests.support.world import cancel

pytestmark = pytest.mark.django_db(transaction=True)

HOST = (b"host", b"localhost:8000")
OUR_ORIGIN = [HOST, (b"origin", b"http://localhost:8000")]

NOBODYS = "7f3c1d52-4e0a-4b61-9a4e-1f6f2f0f5a11"  # an id that no row has


@pytest.fixture(autouse=True)
def _close_readers() -> Any:
    from tests.support.world import forget_readers

    yield
    forget_readers(close=True)


async def code_of(path: str, *, user: Any = None, headers: Any = OUR_ORIGIN) -> tuple[int, list[dict[str, Any]]]:
    """The close code and what was sent before it."""
    address = urlsplit(path)
    scope = {
        "type": "websocket",
        "path": unquote(address.path),
        "query_string": address.query.encode(),
        "headers": headers,
        **({"user": user} if user else {}),
    }
    socket = ApplicationCommunicator(URLRouter(websocket_urlpatterns), scope)
    await socket.send_input({"type": "websocket.connect"})
    said = [await socket.receive_output(timeout=seconds(5))]
    assert said[0]["type"] == "websocket.accept", "browsers cannot see the code of a refused handshake"
    while said[-1]["type"] != "websocket.close":
        said.append(await socket.receive_output(timeout=seconds(5)))
    await socket.send_input({"type": "websocket.disconnect", "code": said[-1]["code"]})
    await socket.wait(timeout=BOUND_S)
    return said[-1]["code"], said[1:-1]


@pytest.fixture
def run(submitted) -> Any:
    """A run that has ended, so that an open socket closes by itself."""
    found = submitted(send=lambda run_id: None)
    cancel(found.id, "ended for the test")
    return found


@pytest.mark.asyncio
async def test_without_credentials_nobody_gets_in(run, demo) -> None:
    assert await code_of(f"/ws/ravi/runs/{run.id}/") == (4401, [])
    for made_up in ("", "nonsense", "%00", "%F0%9F%8E%AB"):  # which a cookie does not help
        assert await code_of(f"/ws/ravi/runs/{run.id}/?ticket={made_up}", user=demo) == (4401, []), made_up


@pytest.mark.asyncio
async def test_a_cookie_from_elsewhere_though_any_host_is_allowed(run, demo, settings) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://app.example.com", "https://*.pages.example"]
    for origins in (
        *([], ["https://evil.example"], ["null"], ["http://[bad"], [""]),
        ["http://localhost:8000", "https://evil.example"],
        ["https://localhost:8000"],  # another scheme
        ["http://localhost"],  # another port
        *(["ftp://localhost:8000"], ["http://localhost:8000.evil.example"], ["http://localhost:8000@evil.example"]),
        ["http://app.example.com"],  # the allowed one has https
        *(["https://app.example.com:8443"], ["https://example.com.evil.example"]),
    ):
        headers = [HOST, *((b"origin", origin.encode()) for origin in origins)]
        assert await code_of(f"/ws/ravi/runs/{run.id}/", user=demo, headers=headers) == (4403, []), origins


@pytest.mark.asyncio
async def test_origins_that_the_site_names_open_sockets(run, demo, stranger, settings) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://app.example.com:443", "https://*.pages.example"]
    settings.RAVI = {**settings.RAVI, "SOCKET_ORIGINS": ["http://localhost:5173"]}
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    stranger.is_superuser = True

    for origin, *more in (
        *([b"https://app.example.com"], [b"https://eu.pages.example"], [b"http://localhost:5173"]),
        [b"http://localhost:8000"],
        [b"https://localhost:8000", (b"x-forwarded-proto", b"https")],  # behind a proxy the scheme is the client's
    ):
        code, frames = await code_of(f"/ws/ravi/runs/{run.id}/", user=demo, headers=[HOST, (b"origin", origin), *more])
        assert (code, bool(frames)) == (1000, True), origin
    assert (await code_of(f"/ws/ravi/runs/{run.id}/", user=stranger))[0] == 1000  # a superuser


@pytest.mark.asyncio
async def test_a_ticket_needs_no_origin_and_works_once(run, demo, ticket) -> None:
    def address() -> str:
        return f"/ws/ravi/runs/{run.id}/?ticket={ticket(demo)}"

    first = await sync_to_async(address)()
    assert (await code_of(first, headers=[]))[0] == 1000
    assert await code_of(first, headers=[]) == (4401, [])
    second = await sync_to_async(address)()
    codes = await asyncio.gather(*(code_of(second) for _ in range(4)))
    assert sorted(code for code, _ in codes) == [1000, 4401, 4401, 4401]
    old = await sync_to_async(address)()
    await Ticket.objects.aupdate(expires_at=timezone.now() - timedelta(seconds=1))
    assert await code_of(old) == (4401, [])
    late = await sync_to_async(address)()
    demo.is_active = False
    await demo.asave()
    assert await code_of(late) == (4401, [])


@pytest.mark.asyncio
async def test_a_ticket_is_used_up_at_an_address_that_is_not_there(run, demo, ticket) -> None:
    query = f"?ticket={await sync_to_async(ticket)(demo)}"

    assert (await code_of(f"/ws/ravi/nothing/{query}"))[0] == 4404
    assert (await code_of(f"/ws/ravi/runs/{run.id}/{query}"))[0] == 4401


@pytest.mark.asyncio
async def test_what_belongs_to_somebody_else_is_not_there(run, stranger) -> None:
    for path in (f"runs/{run.id}", f"sessions/{run.session_id}"):
        assert await code_of(f"/ws/ravi/{path}/", user=stranger) == (4404, []), path


@pytest.mark.asyncio
async def test_what_is_not_there(demo, run, submitted) -> None:
    other = await sync_to_async(submitted)(send=lambda run_id: None)
    for path in (
        *(f"runs/{NOBODYS}/", "runs/17/", "runs/{{01a1feeb-2f96-704d-822f-1aec322d8d0d}}/", f"sessions/{NOBODYS}/"),
        *("sessions/%00/", "nothing/", "", f"sessions/{run.session_id}/?run={other.id}"),
    ):
        assert await code_of(f"/ws/ravi/{path}", user=demo) == (4404, []), path


@pytest.mark.asyncio
async def test_a_bad_after_is_explained_and_closed(run, demo) -> None:
    for after in ("x", "-1", "1.5", "", "%D9%A3", "9" * 19, "1" * 5000):
        code, frames = await code_of(f"/ws/ravi/runs/{run.id}/?after={after}", user=demo)
        said = [frame["text"].split('"message"')[0] for frame in frames]
        assert (code, said) == (4400, ['{"type":"error","code":"invalid_input",']), after


@pytest.mark.asyncio
async def test_a_buffer_that_is_away_asks_for_another_try(run, demo, monkeypatch) -> None:
    def away(*args: Any) -> Any:
        raise ConnectionError("the event buffer is away")

    world.patch(monkeypatch, "events_page", away)

    code, frames = await code_of(f"/ws/ravi/runs/{run.id}/", user=demo)

    assert code == 1013
    assert '"unavailable"' in frames[0]["text"]


@pytest.mark.asyncio
async def test_a_topic_that_is_not_live(demo, settings) -> None:
    for path in ("agent.progress/1", "agent.stream/bad key", "other/agent.progress/1"):
        assert (await code_of(f"/ws/ravi/topics/{path}/", user=demo))[0] == 4400, path
    assert (await code_of("/ws/ravi/topics/agent.stream/x/"))[0] == 4401

    settings.RAVI = {**settings.RAVI, "ENGINE": "manual", "STREAM_URL": None}
    assert await code_of("/ws/ravi/topics/agent.stream/x/", user=demo) == (4501, [])
