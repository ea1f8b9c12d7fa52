"""What a body may cost a process: one over each bound is refused at once, and the dearest one within them is bearable.

Each case is a fresh process (a fork), so that its peak of memory is its own.
"""

from __future__ import annotations

import gc
import json
import os
import time
import zlib
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from django.test import Client
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from ravi_django.api.base import max_body
from ravi_django.kernel import InvalidInputError
from ravi_django.models import Source, StreamArchive, uuid7
from ravi_django.services.problems import problem_of
from ravi_django.wings.feeds.fetching.signatures import sign
from ravi_django.ws import commands
from tests.acceptance.admin.agent_support import FORM
from tests.acceptance.api.api_support import AGENT
from tests.support import world
from tests.support.asked import approval_of
from tests.support.world import Batch, DatabaseBuffer, Frame, Source as Author, ValkeyBuffer

pytestmark = pytest.mark.django_db(transaction=True)

MB = 1024 * 1024
FLOOR_MB = 32  # a small body may take so much
SMALL, LONG = max_body(), 10 * max_body()  # bytes that the doors take

Door = Callable[[bytes], int]


def status_kb(name: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


def cost_of(door: Door, body: bytes) -> tuple[int, float, float]:
    """The status, the seconds of CPU, and the megabytes above those at the begin, in a fork."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        with os.fdopen(read) as answer:
            text = answer.read()
        os.waitpid(pid, 0)
        status, cpu_s, mb = json.loads(text)
        return status, cpu_s, mb
    try:
        gc.collect()
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")  # the peak counts from here
        before, begun = status_kb("VmRSS"), time.process_time()
        status = door(body)
        found = [status, time.process_time() - begun, (status_kb("VmHWM") - before) / 1024]
        os.write(write, json.dumps(found).encode())
    finally:
        os._exit(0)


@pytest.fixture
def doors(user: Any, run: Any) -> dict[str, Door]:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    request = approval_of(run, to="owner")

    def post(path: str) -> Door:
        return lambda body: client.generic("POST", f"/ravi/{path}", body, "application/json").status_code

    source = Source.objects.create(name="alerts", kind="webhook", agent=AGENT, owner=user)
    secret = world.make_secret(source)

    def webhook(body: bytes) -> int:
        signature = {"X-Ravi-Signature": sign(secret, body, int(time.time()))}
        hook = f"/ravi/sources/{source.id}/hook/"
        return client.generic("POST", hook, body, "application/json", headers=signature).status_code

    def upload(body: bytes) -> int:
        head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.json"\r\n\r\n'
        parts = head + body + b"\r\n--x--\r\n"
        return client.generic("POST", "/ravi/files/", parts, "multipart/form-data; boundary=x").status_code

    def socket(body: bytes) -> int:
        try:
            commands.read(body.decode(), None)
        except InvalidInputError as error:
            return problem_of(error).status
        return 200

    found = {
        "runs": post("runs/"),
        "answers": post(f"requests/{request.id}/answer/"),
        "signals": post(f"runs/{run.id}/signals/"),
        "chat": post("v1/chat/completions"),
        "responses": post("v1/responses"),
        "agui": post(f"agui/{NOBODY}/"),
        "emit": post(f"topics/news/{user.pk}/emit/"),
        "webhook": webhook,
        "upload": upload,
        "socket": socket,
    }
    for door in found.values():  # imports
        assert door(b"{}") in (201, 202, 400, 404)
    assert found["emit"](whole("emit", 0)) == 202
    found["agui"](json.dumps(thread([{"id": "1", "role": "user", "content": "hi"}])).encode())
    return found


NOBODY = "react/nobody"  # a call of it ends before a run
HOOK = 256 * 1024
LONGEST = {"chat": LONG, "responses": LONG, "agui": LONG, "webhook": HOOK}
NAMES = ["runs", "answers", "signals", "emit", "chat", "responses", "agui", "socket"]


def thread(messages: list[Any], **more: Any) -> dict[str, Any]:
    """A call of AG-UI that ends before its run: there is no such agent."""
    ids = {"threadId": "x", "runId": "r", "state": {}, "forwardedProps": {}}
    return {**ids, "tools": [], "context": [], "messages": messages, **more}


def whole(name: str, value: Any, fill: int = 0) -> bytes:
    """A body that this door reads to its end, with the value at a place of any JSON, filled up with spaces."""
    said, user = {"role": "assistant"}, {"id": "1", "role": "user", "content": "hi"}
    session = str(uuid7())  # nobody's
    bodies: dict[str, Any] = {
        "runs": {"agent": AGENT, "input": [{"type": "data", "data": value}], "session": session},
        "answers": {"action": "edit", "arguments": {"x": value}},
        "signals": {"name": "x", "payload": value},
        "emit": {"data": {"x": value}},
        "webhook": {"x": value},
        "upload": value,
        "chat": {
            "model": NOBODY,
            "messages": [{"x": value}, said, user],
            "metadata": {"session": session},
        },
        "responses": {"model": NOBODY, "input": [{"x": value}, said, user], "conversation": session},
        "agui": thread([{"x": value}, said, user]),
        "socket": {"type": "answer", "request": session, "action": "resolve", "result": value},
    }
    text = json.dumps(bodies[name], separators=(",", ":")).encode()
    return text + b" " * (fill - len(text))


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def most_commas(longest: int) -> int:
    return min(max(290_000, longest // 40), longest // 8)


OVER: dict[str, Callable[[int], bytes]] = {
    "bytes": lambda longest: b'{"a":"' + b"x" * longest + b'"}',
    "objects": lambda longest: b'{"a":[' + b"{}," * 100_001 + b"0]}",
    "lists": lambda longest: b'{"a":[' + b"[]," * 100_001 + b"0]}",
    "commas": lambda longest: b'{"a":[' + b"0," * 620_000 + b"0]}",
    "depth": lambda longest: b'{"a":' + b"[" * 99_000 + b"]" * 99_000 + b"}",
    "fields": lambda longest: b"{" + b",".join(b'"%x":0' % n for n in range(140_000)) + b"}",
}


def test_a_body_over_a_bound_is_refused_at_once(doors: dict[str, Door]) -> None:
    """One reader serves all doors: the first has all bounds, and each other one a bound of bytes and one of values."""
    first, *others = [*NAMES, "webhook"]
    for name, bound in (*((first, bound) for bound in OVER), *product(others, ("bytes", "objects"))):
        status, cpu_s, mb = cost_of(doors[name], OVER[bound](LONGEST.get(name, SMALL)))
        assert status in (400, 413), (name, bound, status)
        assert cpu_s < 0.6 and mb < 50, (name, bound, cpu_s, mb)


DEAREST: dict[str, Callable[[int], Any]] = {
    "small objects": lambda longest: [{"a": 0}] * min(90_000, longest // 9),
    "numbers": lambda longest: [300] * most_commas(longest),
    "keys": lambda longest: {f"{n:x}": 300 for n in range(most_commas(longest))},
    "texts": lambda longest: [f"{n:x}" for n in range(most_commas(longest))],
    "deep": lambda longest: [nested(150)] * min(600, longest // 310),
}


@pytest.mark.parametrize("name", [*NAMES, "webhook", "upload"])
def test_the_dearest_body_within_all_bounds_is_bearable(doors: dict[str, Door], name: str) -> None:
    longest = LONGEST.get(name, SMALL)
    for case, value_of in DEAREST.items():
        body = whole(name, value_of(longest))
        for filled in (body, body.ljust(longest)) if case == "small objects" else (body,):
            status, cpu_s, mb = cost_of(doors[name], filled)
            assert status not in (500, 503), (case, status)
            assert cpu_s < 2 and mb < max(FLOOR_MB, 8 * len(filled) / MB), (case, len(filled), cpu_s, mb)


def files(count: int) -> list[Any]:
    parts = [{"type": "file", "file": {"file_id": str(uuid7())}} for _ in range(count)]
    return [{"id": "1", "role": "user", "content": parts}]


def texts(count: int) -> list[Any]:
    return [{"id": str(n), "role": "user", "content": "hi"} for n in range(count)]


def answers(count: int, ids: int) -> list[Any]:
    names = [str(uuid7()) for _ in range(ids)]
    said = {"role": "tool", "content": "approve"}
    return [{"id": str(n), "tool_call_id": names[n % ids], "toolCallId": names[n % ids], **said} for n in range(count)]


CONVERSATIONS: dict[str, tuple[int, Callable[..., list[Any]], tuple[int, ...]]] = {
    # Of new messages: over a bound, or the dearest within all.
    "files": (413, files, (20_000,)), "messages": (413, texts, (20_000,)), "answers": (413, answers, (5_000, 51)),
    "20 files more": (400, files, (21,)), "1,000 files": (400, files, (1000,)), "1,000 texts": (404, texts, (1000,)),
    "500 equal answers": (404, answers, (500, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ["chat", "agui"])
def test_new_messages_are_counted_before_they_are_read(doors: dict[str, Door], name: str) -> None:
    for case, (expected, messages_of, counts) in CONVERSATIONS.items():
        messages, session = messages_of(*counts), str(uuid7())
        chat = {"model": NOBODY, "messages": messages, "metadata": {"session": session}}
        body = json.dumps(chat if name == "chat" else thread(messages, threadId=session)).encode()
        status, cpu_s, mb = cost_of(doors[name], body)
        known = {("agui", 404): (404, 406), ("chat", 400): (404,)}  # one only streams; both look for the agent
        assert status in known.get((name, expected), (expected,)), (case, status)
        assert cpu_s < (0.3 if expected in (400, 413) else 2) and mb < max(FLOOR_MB, 8 * len(body) / MB), case


HISTORIES: dict[str, Callable[[], list[Any]]] = {
    "a text": lambda: [{"role": "user", "content": "a b c d " * (LONG // 9)}, {"role": "assistant", "content": "x"}],
    "messages": lambda: [{"role": ("user", "assistant")[number % 2], "content": "a b"} for number in range(90_000)],
}


@pytest.mark.parametrize("case", HISTORIES)
def test_a_history_that_is_compared_is_bearable(doors: dict[str, Door], case: str) -> None:
    body = json.dumps({"model": NOBODY, "messages": [*HISTORIES[case](), {"role": "user", "content": "hi"}]}).encode()

    status, cpu_s, mb = cost_of(doors["chat"], body)

    assert status == 404 and cpu_s < 2 and mb < max(FLOOR_MB, 8 * len(body) / MB), (status, cpu_s, mb)


@pytest.mark.parametrize(("length", "kept"), [(1, 1000), (10_000, 105)])
def test_a_snapshot_of_agui_has_the_newest_messages_of_the_client(client: Any, length: int, kept: int) -> None:
    thread_id = str(uuid7())
    old = [{"id": str(n), "role": "assistant", "content": "x" * length} for n in range(1200)]
    sent = [*old, {"id": "new", "role": "user", "content": "hi"}]

    def call(messages: list[Any]) -> Any:
        body = thread(messages, threadId=thread_id)
        return client.post(f"/ravi/agui/{AGENT}/", body, format="json", SERVER_SOFTWARE="WSGIServer/0.2")

    call(sent).close()
    again = call([*sent, {"id": "part", "role": "assistant", "content": "Hel"}])
    snapshot = next(piece for piece in again.streaming_content if b"MESSAGES_SNAPSHOT" in piece)
    again.close()

    assert json.loads(snapshot.removeprefix(b"data: "))["messages"] == sent[-kept:]


ADMIN_FORM = 2_500_000  # bytes: Django's DATA_UPLOAD_MAX_MEMORY_SIZE is 2.5 MiB
FORMS: dict[str, Callable[[], dict[str, str]]] = {
    "text": lambda: {"system_instructions": "x" * ADMIN_FORM},
    "templates": lambda: {"system_instructions": "{{v}}" * (ADMIN_FORM // 5)},
    "braces": lambda: {"system_instructions": "{{" * (ADMIN_FORM // 2)},
    "objects": lambda: {"options_extra": '{"a":[' + "{}," * 95_000 + "0]}"},
    "numbers": lambda: {"options_extra": '{"a":[' + "0," * 290_000 + "0]}"},
    "schema": lambda: {"result_schema": '{"type":"object","properties":{' + '"a":{},' * 90_000 + '"b":{}}}'},
    "too many models": lambda: {"fallbacks": "openai/x\n" * (ADMIN_FORM // 9)},
    "models": lambda: {"fallbacks": "openai/x\n" * 7_000},
    "lines": lambda: {"starter_prompts": "x\n" * 32_000},
    "approvers": lambda: {"approvers": "staff\n" * (ADMIN_FORM // 6)},
    "variables": lambda: {
        **{f"variables-{n}-name": f"v{n}" for n in range(190)},
        **{f"variables-{n}-default": "x" * 12_000 for n in range(190)},
    },
}


def test_the_dearest_form_of_the_admin_is_bearable(client: Any, user: Any) -> None:
    user.is_staff = user.is_superuser = True
    user.save()
    site = Client(raise_request_exception=False)
    site.force_login(user)

    def door(body: bytes) -> int:
        return site.generic("POST", "/admin/ravi/agent/add/", body, MULTIPART_CONTENT).status_code

    assert door(encode_multipart(BOUNDARY, FORM)) == 302  # imports
    too_long = cost_of(door, encode_multipart(BOUNDARY, {**FORM, "name": "x" * 2_700_000}))
    assert too_long[0] == 400 and too_long[1] < 0.3 and too_long[2] < 50, too_long
    for case, fields in FORMS.items():
        body = encode_multipart(BOUNDARY, {**FORM, "address": f"support/{case.split()[0]}", **fields()})
        assert len(body) < 2.5 * MB
        status, cpu_s, mb = cost_of(door, body)
        assert status in (200, 302, 400), (case, status)
        assert cpu_s < 2 and mb < max(FLOOR_MB, 8 * len(body) / MB), (case, status, cpu_s, mb)


def test_a_process_without_room_for_a_body_asks_to_send_it_again(client: Any, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "PROCESS_BYTES": 1000}

    refused = client.post("/ravi/runs/", {"agent": AGENT, "input": "x" * 2000}, format="json")
    taken = [client.post("/ravi/runs/", {"agent": AGENT, "input": "x" * 800}, format="json") for _ in range(2)]

    assert (refused.status_code, refused["Retry-After"], refused.json()["error"]["code"]) == (503, "2", "busy")
    assert [one.status_code for one in taken] == [201, 201]  # given back at the end of each


@pytest.mark.parametrize("kind", [ValkeyBuffer, DatabaseBuffer, "archive"])
def test_a_page_of_events_has_a_bound_of_bytes(
    client: Any, run: Any, valkey_url: str, monkeypatch: Any, kind: Any
) -> None:
    buffer: Any = DatabaseBuffer() if kind is DatabaseBuffer else ValkeyBuffer(valkey_url)
    world.patch(monkeypatch, "get_buffer", lambda: buffer)
    lengths = [100] * 30 + [5 * MB] + [MB] * 30  # of texts
    for fresh, some in ((True, lengths[:31]), *((False, [one]) for one in lengths[31:])):
        frames = [Frame(Author.of(run), "completion", {"content": "x" * length}) for length in some]
        buffer.append([Batch(str(run.id), frames, 1000, fresh=fresh)])
    if kind == "archive":
        body = zlib.compress(json.dumps(buffer.read(str(run.id), 0, 100)).encode())
        StreamArchive.objects.create(tree=run, body=body)
        buffer.forget([str(run.id)])

    def read(after: int) -> Any:
        return client.get(f"/ravi/runs/{run.id}/events/?after={after}", HTTP_ACCEPT="application/json")

    read(len(lengths))  # imports
    _, cpu_s, mb = cost_of(lambda body: read(0).status_code, b"")
    seen: list[int] = []
    while rows := (answer := read(seen[-1] if seen else 0)).json()["results"]:
        assert len(answer.content) < 4.1 * MB or len(rows) == 1
        seen += [row["seq"] for row in rows]

    assert seen == [*range(1, len(lengths) + 1)]
    assert cpu_s < 2 and (mb < 8 * 4 or kind == "archive"), (cpu_s, mb)  # an archive is decoded as a whole
