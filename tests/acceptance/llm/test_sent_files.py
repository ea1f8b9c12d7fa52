"""No file makes a later message fail: images are scaled where they enter, a request has a budget, and what a model
refuses is left out."""

from __future__ import annotations

import struct
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from io import BytesIO
from random import Random
from typing import Any

import pytest
from django.core.files.base import ContentFile
from PIL import Image
from pypdf import PdfWriter

from ravi_django.calls.llm import FallbackModel, LLMFactory
from ravi_django.kernel import ChatMessage, ImageBlock, ModelError, Role, ToolResultBlock, TransientError
from ravi_django.models import RaviFile, Run
from ravi_django.testing import ScriptedModel
from ravi_django.tools import tool
from tests.support.providers import Body, Provider, check_claude_sizes, claude
from tests.support.runs import code, drive as drive_run, make_run

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Sending a large body"),  # of aiohttp
]

OK = claude({"type": "text", "text": "ok"})


def picture(width: int, height: int, form: str = "JPEG", *, noise: bool = False) -> bytes:
    """Noise has about 3 bytes a pixel as a PNG, 1 as a JPEG."""
    file = BytesIO()
    image = Image.new("RGB", (width, height), "red")
    if noise:
        image.frombytes(Random(1).randbytes(width * height * 3))
    image.save(file, form, quality=90, compress_level=0)
    return file.getvalue()


def pdf(pages: int, password: str = "") -> bytes:
    file, writer = BytesIO(), PdfWriter()
    for _ in range(pages):
        writer.add_blank_page(100, 100)
    if password:
        writer.encrypt(password)
    writer.write(file)
    return file.getvalue()


def post(web: Any, content: bytes, name: str = "a.png") -> Any:
    return web.post("/ravi/files/", {"file": ContentFile(content, name)}, format="multipart")


@pytest.fixture
def claude_chat(web: Any, agent: Any, drive: Any) -> Callable[..., list[Body]]:
    """Send messages to Claude, each with these contents or a text; returns the requests."""

    @cache
    def uploaded(content: bytes) -> Any:
        """One file may be in many messages."""
        return post(web, content).json()

    def chat(*turns: list[bytes] | str, checker: Any = check_claude_sizes, refused: int = 0) -> list[Body]:
        session: dict[str, str] = {}
        with Provider(OK, checker=checker) as server:
            name = agent(LLMFactory("anthropic/claude-sonnet-4-5", "a-key-of-the-test", api_base=server.url).build())
            for turn in turns:
                said: Any = turn
                if not isinstance(turn, str):
                    files = [uploaded(content) for content in turn]
                    kinds = ["document" if file["type"] == "application/pdf" else "image" for file in files]
                    said = [{"type": kind, "file": file["id"]} for kind, file in zip(kinds, files, strict=True)]
                run = web.post("/ravi/runs/", {"agent": name, "input": said, **session}, format="json").json()
                session = {"session": run["session"]}
                drive(run["id"])
        assert set(Run.objects.values_list("status", "output")) == {("completed", "ok")}
        assert len(server.refused) == refused, server.refused
        return server.requests

    return chat


@pytest.mark.parametrize(
    "turns",
    [
        lambda: [[picture(2_000, 2_000, "PNG", noise=True)], "hello"],  # 12 MB
        lambda: [[picture(2_600, 2_600, "JPEG", noise=True)]] * 7,  # 6 MB each
        lambda: [[picture(4_000, 3_000)] * 20, [picture(4_000, 3_000)]],
        lambda: [[pdf(60)], [pdf(60)], "hello"],
    ],
    ids=["big", "many", "wide", "pages"],
)
def test_files_of_any_size_are_accepted_in_each_later_request(claude_chat: Any, turns: Any) -> None:
    requests = claude_chat(*turns())
    assert all("'base64'" in str(request["messages"]) for request in requests)
    for file in RaviFile.objects.filter(type__startswith="image"):
        with file.content.open() as content:
            assert max(Image.open(content).size) <= 2_000 and file.size < 3_500_000 * 3 // 4


def test_a_phones_photo_stays_upright_and_deep_pictures_are_scaled(web: Any) -> None:
    turned = Image.Exif()
    turned[0x112] = 6
    for form, mode, size in (
        ("MPO", "RGB", (1_000, 2_000)),
        ("WEBP", "RGB", (1_000, 2_000)),
        ("PNG", "I;16", (2_000, 1_000)),
    ):
        file = BytesIO()
        Image.new(mode, (3_000, 1_500)).save(file, form, exif=turned if mode == "RGB" else Image.Exif())
        assert post(web, file.getvalue()).status_code == 201, form
        with RaviFile.objects.latest("created_at").content.open() as content:
            assert Image.open(content).size == size, form


def test_what_cannot_be_made_fit_is_refused_with_its_number(web: Any, monkeypatch: Any) -> None:
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 30_000, 30_000, 8, 2, 0, 0, 0)
    images = [(picture(2_400, 20, form), picture(2_000, 20, form)) for form in ("PNG", "JPEG", "GIF", "WEBP")]
    cut = picture(3_000, 100, "PNG", noise=True)[:1_000]
    for content, status, words in (
        (pdf(150), 413, "the document has 150 pages, and at most 100"),
        (pdf(1, "secret"), 400, "the document needs a password"),
        (bomb, 413, "the image has 30000 by 30000 pixels and 29 bytes; at most 50000000 pixels"),
        (cut, 400, "the image has 3000 by 100 pixels and 1000 bytes, and cannot be scaled"),
    ):
        refused = post(web, content)
        assert (refused.status_code, words in refused.json()["error"]["message"]) == (status, True), refused.json()
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "pypdf", None)
    for wide, small in images:
        refused = post(web, wide).json()["error"]["message"]
        assert "2400 by 20 pixels" in refused and "[files]" in refused
        assert post(web, small).status_code == 201
    assert post(web, pdf(150)).status_code == 201


def test_a_tools_image_is_scaled_or_named(monkeypatch: Any) -> None:
    image = ImageBlock(
        data=b64encode(picture(2_100, 1_000, "JPEG", noise=True)).decode(), mime_type="image/png", name="b.png"
    )
    blocks: list[Any] = []

    @tool
    def look() -> ImageBlock:
        """Look."""
        return image

    async def main(ctx: Any, inbox: Any) -> None:
        blocks.extend((await ctx.tool("look")).content)

    code(main, tools=[look])
    drive_run(make_run())
    monkeypatch.setitem(sys.modules, "PIL", None)
    drive_run(make_run())
    scaled, named = blocks
    assert (scaled.mime_type, scaled.name, len(scaled.data) <= 750_000 * 4 // 3) == ("image/jpeg", "b.png", True)
    assert b64decode(scaled.data).startswith(b"\xff\xd8")
    assert named.text.startswith("[image: b.png; not sent: the image has 2100 by 1000 pixels")


def test_a_refused_file_fails_neither_its_message_nor_a_later_one(claude_chat: Any) -> None:
    def checker(request: Body) -> str | None:
        red = b64encode(picture(9, 9)).decode()
        return "messages.0.content.0: Could not process it" if red in str(request) else None

    requests = claude_chat([picture(8, 8)], [picture(9, 9)], "hello", checker=checker, refused=1)
    assert [str(request).count("base64") for request in requests] == [1, 2, 1, 1]
    assert "[image: a.png; not sent: the model refused it]" in str(requests[-1])


def test_an_old_file_that_a_model_refuses_is_left_out(settings: Any) -> None:
    class Refusing(ScriptedModel):
        async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
            seen.append(str(messages).count("data='"))
            if seen[-1]:
                raise ModelError(error, status=400, type="BadRequestError")
            async for event in super().stream(messages, options, meta):
                yield event

    async def main(ctx: Any, inbox: Any) -> None:
        image = ToolResultBlock(call_id="1", content=[ImageBlock(data=data)])
        messages = [ChatMessage(role=Role.TOOL, content=[image]), ChatMessage.of(Role.ASSISTANT, "a cat")]
        await ctx.llm([*messages, ChatMessage.of(Role.USER, "hello")])

    code(main, model=Refusing(["ok"] * 9))
    for error, data, status, calls in (  # noqa: B007
        ("image exceeds 5 MB", "AAAA", "completed", [1, 0]),
        ("image exceeds 5 MB", "AAAA", "completed", [0]),  # the process remembers it
        ("temperature is 3", "BBBB", "failed", [1]),
    ):
        seen: list[int] = []
        assert (drive_run(make_run()).status, seen) == (status, calls), error


def test_a_fallback_that_has_refused_a_file_does_not_get_it_again() -> None:
    class Busy(ScriptedModel):
        async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
            seen.append(("first", str(messages).count("data='")))
            raise TransientError("later", status=503)
            yield

    class Refusing(ScriptedModel):
        async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
            seen.append(("second", str(messages).count("data='")))
            if seen[-1][1]:
                raise ModelError("Could not process it", status=400, type="BadRequestError")
            async for event in super().stream(messages, options, meta):
                yield event

    async def main(ctx: Any, inbox: Any) -> None:
        await ctx.llm([ChatMessage(role=Role.USER, content=[ImageBlock(data="CCCC")])])

    code(main, model=FallbackModel([Busy([], name="first"), Refusing(["ok"] * 2, name="second")]))
    for calls in (
        [("first", 1), ("second", 1), ("first", 0), ("second", 0)],
        [("first", 1), ("second", 0)],
    ):
        seen: list[tuple[str, int]] = []
        assert (drive_run(make_run()).status, seen) == ("completed", calls)


def test_older_files_are_dropped_in_steps() -> None:
    model = ScriptedModel(["ok"] * 60)
    images = [ChatMessage(role=Role.USER, content=[ImageBlock(data="A" * 1_000_000)]) for _ in range(60)]

    async def main(ctx: Any, inbox: Any) -> None:
        for count in range(1, 61):
            await ctx.llm([*images[:count], ChatMessage.of(Role.USER, f"{count}")])

    code(main, model=model)
    assert drive_run(make_run()).status == "completed"
    sent = [[block.type == "image" for message in call.messages for block in message.content] for call in model.calls]
    starts = [one.index(True) for one in sent]
    assert len(set(starts)) <= 6 and all(10 <= sum(one) <= 20 for one in sent[20:])
