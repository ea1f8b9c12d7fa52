"""files/, files/{id}/, and files in the input of runs."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage
from django.core.management import call_command
from django.db import transaction
from django.db.models import F
from django.test import AsyncClient
from django.utils import timezone
from rest_framework.test import APIClient

import ravi_django
from ravi_django.conf import DEFAULTS
from ravi_django.kernel import AgentId, ChatMessage, ImageBlock, InvalidInputError, Role, ToolResultBlock
from ravi_django.models import JournalEntry, RaviFile, Run, Session
from ravi_django.testing import ScriptedModel
from tests.acceptance.api.api_support import AGENT, client_of, drive, error_of, make_agent
from tests.support import forks, world
from tests.support.docs import Page
from tests.support.patience import BOUND_S
from tests.support.runs import code, database_url, drive as drive_run, in_background, make_run, on_postgresql

pytestmark = pytest.mark.django_db

PAGE = Page("files")
CONTENTS = {
    "image/png": b"\x89PNG\r\n\x1a\n...",
    "image/jpeg": b"\xff\xd8\xff\xe0...",
    "image/gif": b"GIF89a\1\0\1\0...",
    "image/webp": b"RIFF1234WEBPVP8 ",
    "application/pdf": b"%PDF-1.7 ...",
    "audio/wav": b"RIFF1234WAVEfmt ",
    "audio/mpeg": b"\xff\xfb\x90...",
    "video/mp4": b"\0\0\0\x18ftypisom...",
    "video/webm": b"\x1aE\xdf\xa3\x9fB\x82\x84webm",
    "text/plain": "<script>alert('ü')</script>".encode(),
}
PNG, MP3 = CONTENTS["image/png"], CONTENTS["audio/mpeg"]


@pytest.fixture(autouse=True)
def stored(settings: Any, tmp_path: Path) -> Callable[[], int]:
    """How many files the storage has."""
    settings.MEDIA_ROOT = tmp_path
    return lambda: len(list(tmp_path.glob("ravi/*")))


def post(client: APIClient, content: bytes, name: str = "a.bin", **more: Any) -> Any:
    return client.post("/ravi/files/", {"file": ContentFile(content, name), **more}, format="multipart")


def uploaded(client: APIClient, content: bytes = PNG) -> str:
    response = post(client, content)
    assert response.status_code == 201, response.json()
    return str(response.json()["id"])


def start(client: APIClient, *files: str, kind: str = "image", **more: Any) -> Any:
    said = [{"type": kind, "file": file} for file in files]
    return client.post("/ravi/runs/", {"agent": AGENT, "input": said, **more}, format="json")


def status_of(response: Any) -> int:
    assert response.getvalue()  # to the end, which closes the file
    return int(response.status_code)


async def read(user: Any, file: str) -> tuple[list[int], str]:
    client = AsyncClient()
    await client.aforce_login(user)
    answer = await client.get(f"/ravi/files/{file}/")
    return [len(chunk) async for chunk in answer], answer["Content-Length"]


@pytest.mark.django_db(transaction=True)
def test_an_asgi_server_streams_the_content(client: APIClient, user: Any) -> None:
    file = uploaded(client, PNG.ljust(150_000))
    assert async_to_sync(read)(user, file) == ([65536, 65536, 18928], "150000")


def test_a_user_lists_and_deletes_their_files(client, strange_client, user, root) -> None:
    uploaded(strange_client)
    used, unused = uploaded(client), uploaded(client)
    assert start(client, used).status_code == 201
    page = client.get("/ravi/files/?limit=1").json()
    assert [file["id"] for file in page["results"]] == [unused] and page["next"]
    for other in (strange_client, client_of(root)):  # who may read all deletes none
        assert other.delete(f"/ravi/files/{unused}/").status_code == 404
    assert [client.delete(f"/ravi/files/{file}/").status_code for file in (used, unused, unused)] == [409, 204, 404]
    assert [str(file.id) for file in RaviFile.objects.filter(owner=user)] == [used]  # the quota's files


@pytest.mark.parametrize("media_type", CONTENTS)
def test_the_type_is_found_by_the_content_and_the_file_is_an_attachment(client: APIClient, media_type: str) -> None:
    content = CONTENTS[media_type]
    found = post(client, content, "über.svg").json()
    digest = hashlib.sha256(content).hexdigest()
    assert found == {
        **{"id": found["id"], "name": "über.svg", "type": media_type},
        **{"size": len(content), "sha256": digest},
    }

    read = client.get(f"/ravi/files/{found['id']}/", HTTP_ACCEPT="image/*")

    assert (read.status_code, read.getvalue(), read["Content-Type"]) == (200, content, media_type)
    assert (read["Cache-Control"], read["ETag"]) == ("private, no-cache", f'"{digest}"')
    assert read["Content-Disposition"] == "attachment; filename*=utf-8''%C3%BCber.svg"
    assert read["X-Content-Type-Options"] == "nosniff"


def test_a_browser_asks_before_it_shows_its_copy(client: APIClient, strange_client: APIClient, user: Any) -> None:
    file, digest = uploaded(client), hashlib.sha256(PNG).hexdigest()

    def again(by: APIClient, etag: str = digest) -> tuple[int, str]:
        response = by.get(f"/ravi/files/{file}/", headers={"If-None-Match": f'"{etag}"'})
        list(response)  # read to its end, and closed
        return response.status_code, response["Cache-Control"]

    assert [again(client), again(client, "other")] == [(304, "private, no-cache"), (200, "private, no-cache")]
    assert [again(other)[0] for other in (strange_client, client_of())] == [404, 401]
    world.erase_user(user)
    assert again(client) == (404, "no-store")


def test_what_is_refused(client: APIClient, stored: Callable[[], int], settings: Any) -> None:
    for content in (b"", b"MZ\x90\0\3", b"\x89PNG", "ü".encode("latin-1"), b"\0\0\0\x18ftypheic"):
        refused = post(client, content)
        assert (refused.status_code, error_of(refused)["field"]) == (400, "file"), content
    assert error_of(post(client, PNG, kind="x"))["field"] == "kind"
    assert client.post("/ravi/files/", {}, format="json").status_code == 415
    settings.RAVI = {**settings.RAVI, "FILES": {"types": ["image/png"], "max_mb": 0.1, "user_mb": 0.15}}
    assert "allowed: image/png" in error_of(post(client, b"hi"))["message"]
    size = 100 * 1024
    for big in (size + 9999, 10 * size):  # by the file, and by the body before it is read
        assert post(client, PNG.ljust(big)).status_code == 413, big
    assert post(client, PNG.ljust(size)).status_code == 201
    refused = post(client, PNG.ljust(size))
    assert (refused.status_code, error_of(refused)["field"]) == (413, "file")
    assert stored() == RaviFile.objects.count() == 1


def test_a_run_may_name_only_files_of_its_owner(client, strange_client, anonymous, user, stranger) -> None:
    file = uploaded(client)
    for kind, names in {"image": [uploaded(strange_client)], "audio": [file], "document": ["no-id"]}.items():
        refused = start(client, *names, kind=kind)
        assert (refused.status_code, error_of(refused)["field"]) == (400, "input"), kind
        assert "input.0." in error_of(refused)["message"], kind
    with pytest.raises(InvalidInputError, match=r"input\.0\.file"):
        ravi_django.submit(AGENT, [{"type": "image", "file": file}], user=stranger)
    assert not Run.objects.exists()

    assert start(client, file, idempotency_key="k").status_code == 201
    session = Session.objects.get()
    assert start(client, file, idempotency_key="k").status_code == 200
    for reader, status in ((client, 200), (strange_client, 404), (anonymous, 401)):
        assert status_of(reader.get(f"/ravi/files/{file}/")) == status
    session.owner = stranger  # who may read a conversation may read its files
    session.save()
    assert status_of(strange_client.get(f"/ravi/files/{file}/")) == 200


@pytest.mark.django_db(transaction=True)
def test_a_fork_keeps_the_files_that_its_conversation_names_and_names_more(client, strange_client) -> None:
    first, second, third, more, theirs = (*(uploaded(client) for _ in range(4)), uploaded(strange_client))
    runs = [start(client, first).json()]
    for file in (second, third):
        drive(runs[-1]["id"])
        runs.append(start(client, file, session=runs[0]["session"]).json())
    drive(runs[-1]["id"])

    def forked(**body: Any) -> Any:
        return client.post(f"/ravi/runs/{runs[1]['id']}/fork/", body, format="json")

    def files(fork: Any) -> set[str]:
        assert fork.status_code == 201, fork.content
        return {str(file.id) for file in RaviFile.objects.filter(sessions=fork.json()["session"])}

    last = JournalEntry.objects.filter(run_id=runs[1]["id"]).latest("seq").seq
    assert files(forked(after_seq=last)) == {first, second}
    assert files(forked(input=[{"type": "image", "file": more}])) == {first, more}
    refused = forked(input=[{"type": "image", "file": theirs}])
    assert (refused.status_code, error_of(refused)["field"]) == (400, "input")


@pytest.mark.django_db(transaction=True)
def test_code_cannot_give_a_model_the_file_of_another_user(client: APIClient, user: Any, stranger: Any) -> None:
    image = ChatMessage(role=Role.USER, content=[ImageBlock(file=uploaded(client))])

    async def look(ctx: Any, inbox: Any) -> str:
        return str((await ctx.llm([image])).text)

    code(look, model=ScriptedModel(["a cat", "a cat"]))
    assert drive_run(make_run(owner=user)).output == "a cat"
    refused = drive_run(make_run(owner=stranger))
    assert refused.status == "failed" and "belongs to another user" in refused.error["message"]


@pytest.mark.django_db(transaction=True)
def test_a_model_call_reads_few_files(client: APIClient, user: Any, monkeypatch: Any, caplog: Any) -> None:
    old, new = uploaded(client), uploaded(client, CONTENTS["image/gif"])
    RaviFile.objects.update(size=7 * 1024 * 1024)
    images = [ImageBlock(file=name) for name in (old, old, new, new)]
    model = ScriptedModel(["two cats"])

    async def look(ctx: Any, inbox: Any) -> str:
        return str((await ctx.llm([ChatMessage(role=Role.USER, content=[image]) for image in images])).text)

    code(look, model=model)
    assert drive_run(make_run(owner=user)).output == "two cats"
    sent = [message.content[0] for message in model.calls[0].messages]
    gif = base64.b64encode(CONTENTS["image/gif"]).decode()
    assert [getattr(block, "data", block.type) for block in sent] == ["text", "text", gif, gif]
    assert "[image: a.bin; not sent: a model call has at most 100 of them, 20 MB" in sent[0].text

    monkeypatch.setattr(FileSystemStorage, "open", Mock(side_effect=OSError("/srv/secret is full")))
    drive_run(make_run(owner=user))
    stored = str([*Run.objects.values(), *JournalEntry.objects.values()])
    assert "the storage of files failed" in stored
    assert "secret" in caplog.text and "secret" not in stored


@pytest.mark.django_db(transaction=True)
def test_a_message_and_a_model_call_have_few_media_of_any_kind(client: APIClient, user: Any) -> None:
    web = {"type": "image", "url": "https://a.example/b.png"}
    inline = {"type": "document", "data": "YQ==", "mime_type": "application/pdf"}
    for too_many in ([web] * 2_000, [web] * 21, [*[web, inline] * 10, {"type": "image", "file": uploaded(client)}]):
        refused = client.post("/ravi/runs/", {"agent": AGENT, "input": too_many}, format="json")
        assert (refused.status_code, error_of(refused)["field"]) == (400, "input")
    assert client.post("/ravi/runs/", {"agent": AGENT, "input": [web, inline] * 10}, format="json").status_code == 201

    class Downloads(ScriptedModel):
        async def fetches_addresses(self) -> bool:
            return bool(downloads)

    model = Downloads(["ok"] * 3)
    images = [ImageBlock(url=f"https://a.example/{number}.png", alt=f"number {number}") for number in range(2_000)]
    results = [ToolResultBlock(call_id=str(number), content=[image]) for number, image in enumerate(images)]

    async def look(ctx: Any, inbox: Any) -> None:
        await ctx.llm([ChatMessage(role=Role.USER, content=[image]) for image in images])
        await ctx.llm([ChatMessage(role=Role.TOOL, content=results)])

    code(look, model=model)
    for downloads, most in ((False, 100), (True, 10)):  # noqa: B007
        model.calls.clear()
        assert drive_run(make_run(owner=user)).status == "completed"
        by_message, by_result = (call.messages for call in model.calls)
        in_messages = [message.content[0] for message in by_message]
        in_result = [result.content[0] for result in by_result[0].content]
        for sent in (in_messages, in_result):
            first = [block.type for block in sent].index("image")
            assert most // 2 <= len(sent) - first <= most and sent[first:] == images[first:]
            assert sent is in_messages or len(sent) - first == most
            assert "number 7; not sent: a model call has at most 100" in sent[7].text


READERS = """
import asyncio, re, sys
import django
django.setup()
from django.conf import settings
from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.kernel import ModelResponse, TextBlock
from ravi_django.testing import run_until_idle

class Reader:
    name = "reader"

    async def stream(self, messages, options, meta):
        for _ in range(20):
            await asyncio.sleep(0.01)  # the other calls load their files meanwhile
        yield ModelResponse.of([TextBlock(text=str(sum(len(block.data) for block in messages[-1].content)))])

def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) // 1024

settings.MEDIA_ROOT = sys.argv[1]
register(ReActAgent("api-helper", model=Reader()))
before = peak()
run_until_idle(timeout=float(sys.argv[2]))
print(peak() - before)
"""


@pytest.mark.django_db(transaction=True)
@on_postgresql
def test_runs_with_files_stay_within_the_memory_of_their_process(client, settings, tmp_path) -> None:
    names = [uploaded(client, MP3 + os.urandom(1_000) * 7_000) for _ in range(2)]
    for _ in range(20):
        assert start(client, *names, kind="audio").status_code == 201

    environment = {**os.environ, "DATABASE_URL": database_url()}
    argv = ["-c", READERS, tmp_path, str(BOUND_S)]
    with forks.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        grown = int(process.communicate(timeout=BOUND_S)[0])

    size = 2 * 4 * math.ceil((7_000_000 + len(MP3)) / 3)
    assert list(Run.objects.values_list("output", flat=True)) == [str(size)] * 20
    assert grown < 256  # MB; 20 calls at once would have 370


@pytest.mark.django_db(transaction=True)
def test_a_message_into_an_answer_refers_to_its_file(client: APIClient) -> None:
    run = start(client, uploaded(client)).json()
    steered = start(client, uploaded(client), session=run["session"], on_busy="steer").json()
    assert steered["id"] == run["id"]
    assert RaviFile.objects.filter(sessions=run["session"], unused_until=None).count() == 2


@pytest.mark.django_db(transaction=True)
def test_an_unused_file_goes_after_a_day_and_a_used_one_with_its_conversation(client, stored, monkeypatch) -> None:
    unused, used, shared = uploaded(client), uploaded(client), uploaded(client)
    run = start(client, used, shared).json()
    other = start(client, shared).json()
    world.sweeper_sweep(lambda runs: None)
    assert RaviFile.objects.count() == 3
    day = timedelta(days=1)
    assert timezone.now() < RaviFile.objects.get(id=unused).unused_until <= timezone.now() + day
    RaviFile.objects.update(unused_until=F("unused_until") - day)
    assert world.prune({}, dry_run=True)["files"] == 1
    world.sweeper_sweep(lambda runs: None)
    assert not RaviFile.objects.filter(id=unused).exists()
    assert RaviFile.objects.count() == stored() == 2

    for conversation, left in ((run, [shared]), (other, [])):
        Session.objects.get(id=conversation["session"]).delete()
        assert [str(file.id) for file in RaviFile.objects.present()] == left
    assert (client.get(f"/ravi/files/{shared}/").status_code, start(client, shared).status_code) == (404, 400)
    for fault in (OSError("away"), KeyboardInterrupt):  # a row stays until its content is deleted
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(FileSystemStorage, "delete", Mock(side_effect=fault))
            world.delete_unused()
        assert RaviFile.objects.count() == stored() == 2
    assert world.prune({})["files"] == 2 and not stored()


@pytest.mark.django_db(transaction=True)
def test_the_row_of_an_upload_is_there_before_its_content(client, user, stored, monkeypatch) -> None:
    save, rows = FileSystemStorage.save, []

    def erased_meanwhile(storage: Any, name: str, content: Any) -> str:
        rows.append(RaviFile.objects.filter(content=name, unused_until__isnull=False).count())
        call_command("ravi_erase", user.username)
        return save(storage, name, content)

    monkeypatch.setattr(FileSystemStorage, "save", erased_meanwhile)
    assert post(client, PNG).status_code == 400
    monkeypatch.setattr(FileSystemStorage, "save", Mock(side_effect=OSError("full")))
    failed = post(client, PNG)
    assert failed.status_code == 500 and "full" not in str(failed.json())
    assert rows == [1] and not stored() and not RaviFile.objects.present().exists()


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_sweep_deletes_a_hundred_files_and_none_that_a_message_gets(user: Any) -> None:
    rows = [RaviFile(owner=user, size=1, content=f"ravi/{n}", unused_until=timezone.now()) for n in range(102)]
    RaviFile.objects.bulk_create(rows)
    with transaction.atomic():
        RaviFile.objects.filter(id=rows[0].id).update(unused_until=None)
        deleted = [in_background(world.delete_unused).result(BOUND_S) for _ in range(3)]
    assert deleted == [100, 1, 0] and RaviFile.objects.get() == rows[0]


def test_the_page_of_the_docs(client: APIClient, user: Any, settings: Any) -> None:
    world.register(make_agent("helper"))
    assert PAGE.run("files: send")["ask"](user, uploaded(client)).session.files.count() == 1
    world.unregister(AgentId.parse("react/helper"))

    shown = PAGE.run("files: settings")
    assert set(shown["RAVI"]["FILES"]) == set(DEFAULTS["FILES"]) and "ravi" in shown["STORAGES"]
    settings.RAVI = {**settings.RAVI, **shown["RAVI"]}
    assert not {"ravi.E035", "ravi.E036"} & {found.id for found in run_checks(tags=["ravi"])}
    settings.RAVI = {**settings.RAVI, "FILES": {"max_mb": 52}}
    assert "ravi.E036" in [found.id for found in run_checks(tags=["ravi"])]
    for wrong in (["image/png"], {"mb": 1}, {"types": "image/png"}, {"types": ["text/html"]}, {"max_mb": 0}):
        settings.RAVI = {**settings.RAVI, "FILES": wrong}
        (found,) = [found for found in run_checks(tags=["ravi"]) if found.id == "ravi.E035"]
        assert found.msg.startswith("RAVI['FILES']") and found.hint.startswith("FILES = {"), wrong
