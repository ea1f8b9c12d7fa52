"""A socket or stream belongs to the credential that opened it, and to the right to what it shows."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import httpx
import pytest
from asking import ask, until
from django.core.cache import caches
from django.test import Client
from django.utils import timezone
from rest_framework.authtoken.models import Token
from websockets.exceptions import ConnectionClosed

from project.process import wait_until
from ravi_django.api import sse
from ravi_django.conf import DEFAULTS
from ravi_django.models import Run, Session, Ticket
from tests.support import world
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.django_db(transaction=True)


def looked(server: Any) -> None:
    """The look of the server's process, which else comes every 30 s."""
    assert wait_until(lambda: world.streams_open.get(server.loop), BOUND_S)
    found = list(world.streams_open[server.loop])
    asyncio.run_coroutine_threadsafe(world.streams_look(found), server.loop).result(BOUND_S)


def code_of(client: Any) -> int:
    with pytest.raises(ConnectionClosed):
        while True:
            client.recv(timeout=BOUND_S)
    return int(client.close_code)


@pytest.fixture
def browser(demo) -> Client:
    found = Client()
    found.force_login(demo)
    return found


def jar(browser: Client) -> dict[str, str]:
    return {"Cookie": f"sessionid={browser.cookies['sessionid'].value}"}


def by_ticket(client: Any, **headers: str) -> str:
    return f"?ticket={client.post('/ravi/tickets/', content_type='application/json', headers=headers).json()['ticket']}"


def log_out(browser: Any, demo: Any) -> None:
    assert browser.post("/accounts/logout/").status_code == 302


def change_password(browser: Any, demo: Any) -> None:
    demo.set_password("another")
    demo.save()


def lock_out(browser: Any, demo: Any) -> None:
    demo.is_active = False
    demo.save()


def delete_token(browser: Any, demo: Any) -> None:
    Token.objects.get(user=demo).delete()


def give_away(browser: Any, demo: Any) -> None:
    other = type(demo).objects.create_user("other")
    Run.objects.update(owner=other)
    Session.objects.update(owner=other)


@pytest.mark.parametrize("kind", ["runs", "sessions"])
@pytest.mark.parametrize(
    ("end", "code"), [(log_out, 4401), (change_password, 4401), (lock_out, 4401), (give_away, 4403)]
)
def test_a_socket_of_a_session_ends_with_it(server, run, demo, browser, kind, end, code) -> None:
    path = f"/ws/ravi/{kind}/{run.id if kind == 'runs' else run.session_id}/"
    with server.connect(path, additional_headers=jar(browser), origin=server.url) as client:
        looked(server)
        client.ping().wait(BOUND_S)  # a look closes nobody whose rights are there
        end(browser, demo)

        looked(server)

        assert code_of(client) == code


@pytest.mark.parametrize("ticketed", [False, True])
@pytest.mark.parametrize("end", [log_out, change_password, lock_out, delete_token])
def test_a_frame_that_is_sent_after_the_end_of_the_credential_does_nothing(
    server, run, demo, browser, end, ticketed
) -> None:
    """A look every 30 s ends what a socket reads; what it sends is checked at once."""
    request = ask(run)
    commands = {
        f"runs/{run.id}/": {"type": "cancel"},
        f"sessions/{run.session_id}/": {"type": "message", "text": "hi"},
        "requests/": {"type": "answer", "request": str(request.id), "action": "answer", "text": "yes"},
    }
    token = {"Authorization": f"Token {Token.objects.create(user=demo)}"} if end is delete_token else {}
    with ExitStack() as opened:
        sockets = []
        for path in commands:
            options = {"additional_headers": jar(browser), "origin": server.url}
            address = f"/ws/ravi/{path}"
            if token or ticketed:
                options, address = {}, address + by_ticket(Client() if token else browser, **token)
            sockets.append(opened.enter_context(server.connect(address, **options)))
            sockets[-1].send("hello?")
            until(sockets[-1], "error")  # it is open
        end(browser, demo)

        for client, command in zip(sockets, commands.values(), strict=True):
            client.send(json.dumps(command))

        assert [code_of(client) for client in sockets] == [4401] * 3
    request.refresh_from_db()
    assert (Run.objects.get().status, request.status) == (run.status, "pending")


def test_a_look_is_one_query_a_kind_however_many_are_open(run, demo, browser, django_assert_num_queries) -> None:
    by_token = world.Credential.of_token(Token.objects.create(user=demo))
    credentials = [world.Credential.of_session(browser.session, demo), by_token]
    found = [
        world.OpenStream(demo.pk, credential, "", row)
        for row in (run, run.session)
        for credential in credentials
        for _ in range(20)
    ]

    with django_assert_num_queries(5):  # users, sessions, tokens, runs, conversations
        assert world.streams_lost(found) == {}


def test_a_tickets_socket_ends_with_the_token_that_asked_for_it(server, run, demo) -> None:
    token = Token.objects.create(user=demo)
    asked = Client()
    with server.connect(f"/ws/ravi/runs/{run.id}/{by_ticket(asked, Authorization=f'Token {token}')}") as client:
        looked(server)  # once it is open
        late = by_ticket(asked, Authorization=f"Token {token}")
        token.delete()

        looked(server)

        assert code_of(client) == 4401
    with server.connect(f"/ws/ravi/runs/{run.id}/{late}") as client:
        assert code_of(client) == 4401


def test_an_event_stream_ends_with_the_session(server, run, demo, browser, monkeypatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.05)
    address = f"{server.url}/ravi/runs/{run.id}/events/"
    with (
        httpx.Client(timeout=BOUND_S, trust_env=False) as http,
        http.stream("GET", address, headers={**jar(browser), "Accept": "text/event-stream"}) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines).startswith("retry: ") and [next(lines), next(lines)] == ["", ": open"]
        log_out(browser, demo)
        looked(server)

        assert not any("stream.done" in line for line in lines)  # ends


def test_a_ticket_lives_while_its_event_stream_is_open_and_a_minute_more(server, run, demo) -> None:
    def left() -> float:
        return (Ticket.objects.get().expires_at - timezone.now()).total_seconds()

    address = f"{server.url}/ravi/runs/{run.id}/events/?ticket={world.tickets_issue(demo)[0]}"
    with httpx.Client(timeout=BOUND_S, trust_env=False) as http:
        for _ in range(2):
            with http.stream("GET", address) as stream:
                lines = stream.iter_lines()  # kept: letting go of it would close the connection
                next(lines)
                assert 60 < left() <= 90  # a killed process leaves it like this
                Ticket.objects.update(expires_at=timezone.now() + timedelta(seconds=1))
                looked(server)
                assert 60 < left() <= 90
            assert wait_until(lambda: left() <= 60, BOUND_S)


def test_a_socket_too_many_says_so_and_a_closed_one_makes_room(server, run, demo, settings) -> None:
    caches["default"].clear()
    settings.RAVI = {**settings.RAVI, "LIMITS": {**dict.fromkeys(DEFAULTS["LIMITS"]), "sockets": 1, "submit": 1}}
    address = f"/ws/ravi/sessions/{run.session_id}/?ticket="
    with server.connect(address + world.tickets_issue(demo)[0]) as first:
        first.send('{"type": "unknown"}')
        while json.loads(first.recv(timeout=BOUND_S))["type"] != "error":
            pass  # it has its place once it answers
        with server.connect(address + world.tickets_issue(demo)[0]) as second:
            assert json.loads(second.recv(timeout=BOUND_S))["code"] == "throttled"
            assert code_of(second) == 4429

        for _ in range(2):  # messages count as POST runs/ does
            first.send('{"type": "message", "text": "hi"}')
        said = [json.loads(first.recv(timeout=BOUND_S))]
        while said[-1]["type"] != "error":
            said.append(json.loads(first.recv(timeout=BOUND_S)))
        assert [frame["type"] for frame in said].count("accepted") == 1
        assert (said[-1]["code"], 0 < said[-1]["retry_after"] <= 60) == ("throttled", True)
    with server.connect(address + world.tickets_issue(demo)[0]) as third:
        third.ping().wait(BOUND_S)
        assert third.close_code is None
