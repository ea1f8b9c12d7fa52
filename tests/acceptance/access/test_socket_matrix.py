"""Who gets in at each socket: every route has a row."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter

from ravi_django.routing import websocket_urlpatterns
from tests.acceptance.access.world import PEOPLE, make
from tests.support.patience import BOUND_S
from tests.support.world import forget_readers

pytestmark = pytest.mark.django_db(transaction=True)

TABLE = {
    "RunConsumer": "4401 4404 4404 4404 4404 open open",
    "SessionConsumer": "4401 4404 4404 4404 4404 open open",
    "RequestsConsumer": "4401 open open open open open open",
    "TopicConsumer": "4404 4404 4404 4404 4404 4404 4404",  # the path of no topic
    "UnknownPath": "4404 4404 4404 4404 4404 4404 4404",
}


async def outcome(path: str, user: Any) -> str:
    """The code that the socket closes with; `open` where it answers a frame that it does not know."""
    scope = {
        "type": "websocket",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"origin", b"http://localhost")],
    }
    socket = ApplicationCommunicator(URLRouter(websocket_urlpatterns), scope | ({"user": user} if user else {}))
    await socket.send_input({"type": "websocket.connect"})
    await socket.send_input({"type": "websocket.receive", "text": '{"type": "unknown"}'})
    code = ""
    while not code:
        sent = await socket.receive_output(timeout=BOUND_S)
        if sent["type"] == "websocket.close":
            code = str(sent["code"])
        elif '"error"' in sent.get("text", ""):
            code = "open"
    await socket.send_input({"type": "websocket.disconnect", "code": 1000})
    await socket.wait(timeout=BOUND_S)
    return code


def test_each_socket_answers_each_person_as_the_table_says(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "TENANT_OF": "tests.acceptance.access.world.tenant_of"}
    world = make()
    seen = {}
    for route in websocket_urlpatterns:
        consumer = route.callback.consumer_class.__name__
        pk = world.rows["session"].pk if "sessions" in str(route.pattern) else world.run.pk
        path = "/" + str(route.pattern).strip("^$").replace("(?P<id>[^/]+)", str(pk))
        seen[consumer] = " ".join(async_to_sync(outcome)(path, world.people[person]) for person in PEOPLE)
    forget_readers(close=True)

    assert seen == TABLE
