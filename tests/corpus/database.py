"""Runs in all states that a release freezes, and their ends in a later one. `python -m tests.corpus` calls these."""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db.models import Max

from ravi_django import answer, emit, follow, register, schedule, signal
from ravi_django.middleware import ChatMiddleware, FunctionMiddleware
from ravi_django.models import HumanRequest, JournalEntry, RaviFile, Run, Source, Status
from ravi_django.testing import FakeClock, journal_of, run_until_idle
from tests.corpus import agents
from tests.support import world
from tests.support.runs import drive, idle

ROOT = Path(__file__).parents[2]
FIELDS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PAGE = [{"name": "fill", "description": "Fill the form.", "parameters": FIELDS}]
calls: Counter[str] = Counter()  # made by this process, by agent and name


class CountModels(ChatMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        await call_next()
        calls[f"{context.ctx.agent_id.key} {context.model.name}"] += context.made


class CountTools(FunctionMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        await call_next()
        calls[f"{context.ctx.agent_id.key} {context.tool.name}"] += context.made


def dot() -> bytes:
    """A PNG of one pixel."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


def write() -> None:
    _register()
    agents.writes = True
    socket.gethostname = lambda: "worker"  # the names of workers have it
    create = get_user_model().objects.create_user
    ann, _ = create("ann"), create("bob", is_staff=True)

    def new(scenario: str, agent: str = "", input: Any = "hi", **options: Any) -> Run:
        address = f"test/corpus_{agent or scenario}"
        return world.submit_once(address, input, user=ann, metadata={"scenario": scenario}, **options)[0]

    # What has ended, and what waits.
    idle(new("completed", "echo", "hello"))
    idle(new("failed"))
    idle(cancelled := new("cancelled", "timer"))
    cancelled.cancel("enough")
    for scenario in (*sorted(agents.OUTPUTS.keys() - {"react"}), "tree", "timer", "form", "gate"):
        idle(new(scenario))
    idle(new("page", client_tools=PAGE))
    world.save_spec("test/corpus_row", agents.ROW)
    idle(new("row"))
    world.save_spec("test/corpus_row", {**agents.ROW, "system_instructions": "Be rude."})

    # A conversation with a file, an encrypted block, an open approval and a message behind it.
    file = world.upload(ann, ContentFile(dot(), "dot.png"))
    image = [{"type": "text", "text": "What is this?"}, {"type": "image", "file": str(file.id)}]
    first = idle(new("image", "desk", image))
    idle(new("approval", "desk", "Send it.", session=first.session))
    new("queued", "desk", "What did I say?", session=first.session)

    # What comes at its time, and a secret.
    new("delayed", "echo", "later", start_at=timedelta(hours=12))
    schedule("test/corpus_echo", "tick", name="daily", every=86_400, user=ann, metadata={"scenario": "schedule"})
    follow("test/corpus_echo", "news/corpus", user=ann, metadata={"scenario": "follow"})
    world.add_source("webhook", "", "test/corpus_echo", user=ann, secret=agents.SECRET)

    # Other code has blocked one, workers have died, and one was never claimed. Last: a lease lasts half a minute.
    signal(drive(blocked := new("blocked")).id, "go")
    agents.is_wrong = True
    drive(blocked)
    drive(new("react", budget={"max_tokens": 1_000}), dies=3)
    drive(new("lost"), dies=2)
    new("pending", "echo", "soon")
    emit("news/corpus", "news")
    for entry in JournalEntry.objects.filter(trace__isnull=False):
        entry.trace = json.loads(json.dumps(entry.trace).replace(f"{ROOT}/", ""))
        entry.save(update_fields=["trace"])


def finish() -> dict[str, Any]:
    """What each run came to, and what this process did for it, by scenario or agent; and what it has read."""
    _register()
    for file in RaviFile.objects.all():
        default_storage.save(file.content.name, ContentFile(dot()))
    users = {user.username: user for user in get_user_model().objects.all()}
    with FakeClock(Run.objects.aggregate(at=Max("created_at"))["at"] + timedelta(minutes=2)) as clock:
        run_until_idle(timeout=None)
        for request in HumanRequest.objects.filter(status="pending"):
            _answer(request, users)
        for run in Run.objects.filter(waiting_on__0__kind="signal"):
            signal(run.id, "go", {"x": 1})
        Run.objects.get(status=Status.BLOCKED).retry()
        for _ in range(3):
            run_until_idle(timeout=None)
            clock.advance(43_200)
    runs = {run.metadata["scenario"]: run for run in Run.objects.filter(parent=None)}
    return {
        "runs": {name: [run.status, run.output] for name, run in runs.items()},
        "calls": dict(calls),
        "broken": [name for name, run in runs.items() if not _is_whole(run)],
        "export": sorted({row["model"] for row in world.export(users["ann"])}),
        "secrets": world.secrets_of(Source.objects.get()),
    }


def _is_whole(run: Run) -> bool:
    """Whether the journal has no gap, and the stream an end."""
    frames, _ = world.events_page(run.id)
    return [row.seq for row in journal_of(run)] == [*range(1, run.next_seq)] and frames[-1]["type"] == "stream.done"


def _register() -> None:
    world.replace("build_model", agents.model_of_row)
    for agent in agents.of_databases().values():
        register(agent, access="authenticated")


def _answer(request: HumanRequest, users: dict[str, Any]) -> None:
    if request.kind == HumanRequest.Kind.UNCERTAIN:
        world.human_resolve(request.id, "happened", result="it was sent")
    elif request.kind == HumanRequest.Kind.APPROVAL:
        answer(request, "approve", by=users["bob"])
    elif request.kind == HumanRequest.Kind.CLIENT_TOOL:
        answer(request, text="filled", by=users["ann"])
    else:
        answer(request, values={"size": "XL", "colour": "red"}, by=users["ann"])
