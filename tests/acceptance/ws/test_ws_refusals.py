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
from websockets.exceptions import ConnectionClosed

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
async def test_nobody(run) -> None:
    assert await code_of(f"/ws/ravi/runs/{run.id}/") == (4401, [])


@pytest.mark.asyncio
async def test_a_logged_in_user_on_a_page_of_ours(run, demo) -> None:
    code, frames = await code_of(f"/ws/ravi/runs/{run.id}/", user=demo)

    assert code == 1000
    assert frames


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "origins",
    [
        [],
        ["https://evil.example"],
        ["null"],
        ["http://[bad"],
        [""],
        ["http://localhost:8000", "https://evil.example"],
        ["https://localhost:8000"],  # another scheme
        ["http://localhost"],  # another port
        ["ftp://localhost:8000"],
        ["http://localhost:8000.evil.example"],
        ["http://localhost:8000@evil.example"],
        ["http://app.example.com"],  # the allowed one has https
        ["https://app.example.com:8443"],
        ["https://example.com.evil.example"],
    ],
)
async def test_a_cookie_from_elsewhere_though_any_host_is_allowed(run, demo, settings, origins) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://app.example.com", "https://*.pages.example"]
    headers = [HOST, *((b"origin", origin.encode()) for origin in origins)]

    assert await code_of(f"/ws/ravi/runs/{run.id}/", user=demo, headers=headers) == (4403, [])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "origin", ["https://app.example.com", "https://eu.pages.example", "http://localhost:5173", "http://localhost:8000"]
)
async def test_origins_that_the_site_names_open_sockets(run, demo, settings, origin) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://app.example.com:443", "https://*.pages.example"]
    settings.RAVI = {**settings.RAVI, "SOCKET_ORIGINS": ["http://localhost:5173"]}
    headers = [HOST, (b"origin", origin.encode())]

    assert (await code_of(f"/ws/ravi/runs/{run.id}/", user=demo, headers=headers))[0] == 1000


@pytest.mark.asyncio
async def test_behind_a_proxy_the_scheme_is_the_clients(run, demo, settings) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    headers = [HOST, (b"origin", b"https://localhost:8000"), (b"x-forwarded-proto", b"https")]

    assert (await code_of(f"/ws/ravi/runs/{run.id}/", user=demo, headers=headers))[0] == 1000


@pytest.mark.asyncio
async def test_a_ticket_needs_no_origin_and_works_once(run, demo, ticket) -> None:
    address = f"/ws/ravi/runs/{run.id}/?ticket={await sync_to_async(ticket)(demo)}"

    assert (await code_of(address, headers=[]))[0] == 1000
    assert await code_of(address, headers=[]) == (4401, [])


@pytest.mark.asyncio
async def test_a_ticket_is_used_up_at_an_address_that_is_not_there(run, demo, ticket) -> None:
    query = f"?ticket={await sync_to_async(ticket)(demo)}"

    assert (await code_of(f"/ws/ravi/nothing/{query}"))[0] == 4404
    assert (await code_of(f"/ws/ravi/runs/{run.id}/{query}"))[0] == 4401


@pytest.mark.asyncio
async def test_of_two_that_come_with_one_ticket_at_once_one_gets_in(run, demo, ticket) -> None:
    address = f"/ws/ravi/runs/{run.id}/?ticket={await sync_to_async(ticket)(demo)}"

    codes = await asyncio.gather(*(code_of(address) for _ in range(4)))

    assert sorted(code for code, _ in codes) == [1000, 4401, 4401, 4401]


@pytest.mark.asyncio
async def test_an_old_ticket(run, demo, ticket) -> None:
    address = f"/ws/ravi/runs/{run.id}/?ticket={await sync_to_async(ticket)(demo)}"
    await Ticket.objects.aupdate(expires_at=timezone.now() - timedelta(seconds=1))

    assert await code_of(address) == (4401, [])


@pytest.mark.asyncio
async def test_a_ticket_of_a_user_who_was_locked_out(run, demo, ticket) -> None:
    address = f"/ws/ravi/runs/{run.id}/?ticket={await sync_to_async(ticket)(demo)}"
    demo.is_active = False
    await demo.asave()

    assert await code_of(address) == (4401, [])


@pytest.mark.asyncio
@pytest.mark.parametrize("ticket", ["", "nonsense", "%00", "%F0%9F%8E%AB"])
async def test_a_made_up_ticket_is_not_helped_by_a_cookie(run, demo, ticket) -> None:
    assert await code_of(f"/ws/ravi/runs/{run.id}/?ticket={ticket}", user=demo) == (4401, [])


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["runs", "sessions"])
async def test_what_belongs_to_somebody_else_is_not_there(run, stranger, kind) -> None:
    target = run.id if kind == "runs" else run.session_id

    assert await code_of(f"/ws/ravi/{kind}/{target}/", user=stranger) == (4404, [])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "path",
    [
        f"runs/{NOBODYS}/",
        "runs/17/",
        "runs/{{01a1feeb-2f96-704d-822f-1aec322d8d0d}}/",
        f"sessions/{NOBODYS}/",
        "sessions/%00/",
        "nothing/",
        "",
    ],
)
async def test_what_is_not_there(demo, path) -> None:
    assert await code_of(f"/ws/ravi/{path}", user=demo) == (4404, [])


@pytest.mark.asyncio
async def test_a_run_of_another_session_does_not_open_this_one(run, submitted, demo) -> None:
    other = await sync_to_async(submitted)(send=lambda run_id: None)

    assert await code_of(f"/ws/ravi/sessions/{run.session_id}/?run={other.id}", user=demo) == (4404, [])


@pytest.mark.asyncio
@pytest.mark.parametrize("after", ["x", "-1", "1.5", "", "%D9%A3", "9" * 19, "1" * 5000])
async def test_a_bad_after_is_explained_and_closed(run, demo, after) -> None:
    code, frames = await code_of(f"/ws/ravi/runs/{run.id}/?after={after}", user=demo)

    assert code == 4400
    assert [frame["text"].split('"message"')[0] for frame in frames] == ['{"type":"error","code":"invalid_input",']


@pytest.mark.asyncio
async def test_a_superuser_sees_every_run(run, stranger) -> None:
    stranger.is_superuser = True

    assert (await code_of(f"/ws/ravi/runs/{run.id}/", user=stranger))[0] == 1000


@pytest.mark.asyncio
async def test_a_buffer_that_is_away_asks_for_another_try(run, demo, monkeypatch) -> None:
    def away(*args: Any) -> Any:
        raise ConnectionError("the event buffer is away")

    world.patch(monkeypatch, "events_page", away)

    code, frames = await code_of(f"/ws/ravi/runs/{run.id}/", user=demo)

    assert code == 1013
    assert '"unavailable"' in frames[0]["text"]


def test_over_a_real_server_a_cookie_opens_and_a_foreign_page_does_not(server, run, demo, cookie) -> None:
    headers = {"Cookie": cookie(demo)}
    world.republish(str(run.id))

    with server.connect(f"/ws/ravi/runs/{run.id}/", additional_headers=headers, origin=server.url) as ours:
        assert '"stream.done"' in list(ours)[-1]
        assert ours.close_code == 1000
    with server.connect(f"/ws/ravi/runs/{run.id}/", additional_headers=headers, origin="http://evil.example") as evil:
        with pytest.raises(ConnectionClosed):
            evil.recv(timeout=BOUND_S)
        assert evil.close_code == 4403
