"""The event stream of an OpenAI-like server, read as servers really send it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

DONE: dict[str, Any] = {"done": True}
ALIVE: dict[str, Any] = {}  # a comment, or another line without data: the server is at work
MAX_BYTES = 32 * 1024 * 1024  # of a line, and of an answer that is one document
DRAIN_S = 1.0  # for the end of the response after [DONE]: then its connection is used again


async def chunks(stream: Any) -> AsyncIterator[dict[str, Any]]:
    """The chunks of an `openai.AsyncStream` as JSON, with `ALIVE` and `DONE` among them. An answer that is one document
    is one chunk. Raises `openai.APIError` for an error that is sent as data."""
    document: list[str] = []
    size = 0
    lines = _lines(stream.response)
    async for line in lines:
        if document or line.startswith("{"):
            document.append(line)
            size += len(line)
            _check_size(size)
            continue
        name, _, data = line.partition(":")
        data = data.removeprefix(" ")
        if name != "data" or not data:
            yield ALIVE
        elif data.startswith("[DONE]"):
            yield DONE
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    async for _line in lines:
                        pass
            return
        else:
            yield _chunk(stream, data)
    if document:
        chunk = _chunk(stream, "\n".join(document))
        for choice in chunk.get("choices") or ():
            choice["delta"] = choice.pop("message", None)
        yield chunk
        yield DONE


async def _lines(response: Any) -> AsyncIterator[str]:
    """Lines end with LF or CRLF alone: JSON may hold the other characters that Python takes for ends of lines."""
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        _check_size(len(rest))
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"the provider's answer is larger than {MAX_BYTES} bytes")


def _chunk(stream: Any, data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        raise _error(stream, f"the provider sent a piece that is not JSON: {data[:200]}", None) from None
    if not isinstance(chunk, dict):
        raise _error(stream, f"the provider sent a piece that is no object: {data[:200]}", None)
    error = chunk.get("error") or (chunk["response"].get("error") if isinstance(chunk.get("response"), dict) else None)
    if "error" in (chunk.get("object"), chunk.get("type")):
        error = error or chunk
    if error:
        body = error if isinstance(error, Mapping) else {"message": str(error)}
        raise _error(stream, str(body.get("message") or "the provider sent an error in its stream"), dict(body))
    return chunk


def _error(stream: Any, message: str, body: dict[str, Any] | None) -> Exception:
    import openai

    return openai.APIError(message, stream.response.request, body=body)
