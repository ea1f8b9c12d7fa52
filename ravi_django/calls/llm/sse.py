"""The event stream of an OpenAI-like server, read as servers really send it."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

DONE: dict[str, Any] = {"done": True}
ALIVE: dict[str, Any] = {}  # a comment, or another line without data: the server is at work
MAX_BYTES = 32 * 1024 * 1024  # of a line, and of an answer that is one document
DRAIN_S = 1.0  # for the end of the response after [DONE]: then its connection is used again


async def chunks(response: Any) -> AsyncIterator[dict[str, Any]]:
    """The chunks of an `httpx.Response` as JSON, with `ALIVE` and `DONE` among them. An answer that is one document
    is one chunk. Raises `openai.APIError` for an error that is sent as data."""
    document: list[str] = []
    piece, event, size = "", "", 0  # a piece may have several lines
    lines = _lines(response)
    async for line in lines:
        if document or line.lstrip().startswith(("{", "[{")):
            document.append(line)
            size += len(line)
            _check_size(size)
            continue
        name, _, data = line.partition(":")
        data = data.removeprefix(" ")
        if name == "data" and data.startswith("[DONE]"):
            yield DONE
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    async for _line in lines:
                        pass
            return
        if name in ("data", "error") and data:  # llama.cpp has sent errors as a field
            piece += data
            _check_size(len(piece))
            with suppress(ValueError):
                chunk = json.loads(piece)
                piece = ""
                yield _chunk(response, chunk, is_error="error" in (name, event))
                continue
        event = data if name == "event" else event if line else ""
        if line:
            yield ALIVE
        else:
            _check_whole(response, piece)
    _check_whole(response, piece)
    if document:
        body = "\n".join(document)
        try:
            chunk = json.loads(body)
        except ValueError:
            _check_whole(response, body)
        yield _chunk(response, chunk)
        yield DONE


async def _lines(response: Any) -> AsyncIterator[str]:
    """Lines end with LF, CRLF or CR alone: JSON may hold the other characters that Python takes for ends of lines."""
    rest: list[bytes] = []
    size, half, mark = 0, False, codecs.BOM_UTF8
    async for data in response.aiter_bytes():
        rest.append(data)
        size += len(data)
        _check_size(size)
        if not (half or b"\n" in data or b"\r" in data):
            continue
        read = b"".join(rest)
        half = read[-1:] == b"\r"  # its LF may be in the next piece
        *lines, last = (read[:-1] if half else read).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = [last, b"\r"] if half else [last]
        size = len(last)
        for line in lines:
            yield line.removeprefix(mark).decode(errors="replace")
            mark = b""
    if last_line := b"".join(rest).removesuffix(b"\r"):
        yield last_line.removeprefix(mark).decode(errors="replace")


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"the provider's answer is larger than {MAX_BYTES} bytes")


def _check_whole(response: Any, piece: str) -> None:
    if piece:
        raise _error(response, f"the provider sent a piece that is not JSON: {piece[:200]}", None)


def _chunk(response: Any, chunk: Any, *, is_error: bool = False) -> dict[str, Any]:
    if isinstance(chunk, list) and len(chunk) == 1:  # Gemini's errors
        chunk = chunk[0]
    if chunk is None:
        return ALIVE
    if not isinstance(chunk, dict):
        raise _error(response, f"the provider sent a piece that is no object: {chunk!s:.200}", None)
    holders = (chunk, chunk.get("response"), *(chunk.get("choices") or ()))
    errors = (holder.get("error") for holder in holders if isinstance(holder, dict))
    # Some servers send an error without words in each piece.
    error = next((one for one in errors if (any(one.values()) if isinstance(one, dict) else one)), None)
    is_alone = not chunk.keys() & {"choices", "type", "object", "usage"} and chunk.keys() & {"message", "detail"}
    if not error and (is_error or is_alone or "error" in (chunk.get("object"), chunk.get("type"))):
        error = chunk
    if error:
        inner = error.get("error", error) if isinstance(error, dict) else error
        body = inner if isinstance(inner, dict) else {"message": str(inner)}
        body = {name: chunk[name] for name in _ABOUT if name in chunk} | {
            k: v for k, v in body.items() if v is not None
        }
        message = body.get("message") or body.get("detail") or "the provider sent an error in its stream"
        raise _error(response, str(message), body)
    return chunk


_ABOUT = ("code", "status", "status_code")  # of an error, beside it


def _error(response: Any, message: str, body: dict[str, Any] | None) -> Exception:
    import openai

    return openai.APIError(message, response.request, body=body)
