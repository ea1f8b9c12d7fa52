"""Read on in a tool's result that was too big to be shown at once."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Annotated, Any
from uuid import UUID

from django.db.models import Q
from pydantic import Field

from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.calls.tools.results import READER, WHOLE
from ravi_django.engine.journal.entries import internalize
from ravi_django.kernel import RunContext, TextBlock, ToolExecutionResult, ToolRefused
from ravi_django.live.streams.hidden import is_marked
from ravi_django.models import Blob, JournalEntry, Run

PAGE = 16_000  # bytes
MAX_PAGE = 64_000
MAX_FOUND = 10
AROUND = 100  # bytes shown on either side of a match
MAX_FORKS = 20  # forks that a run's past goes back over
_STEP = 256 * 1024  # bytes unpacked at once
_PACKED = 64 * 1024


class ReadResultTool(FunctionTool):
    """`read_result(id, offset, limit, find)`: read a result that was cut, by the id in its marker.

    It reads results of runs in the same session, and of runs with the same owner and tenant; all others are unknown.
    Give it to an agent whose tools may return big results.
    """

    def __init__(self) -> None:
        super().__init__(read_result, name=READER)


def read_result(
    ctx: RunContext,
    id: Annotated[str, Field(max_length=600)],
    offset: Annotated[int, Field(ge=0)] = 0,
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = PAGE,
    find: Annotated[str, Field(max_length=200)] = "",
) -> ToolExecutionResult:
    """Read on in a tool's result that was cut, or find a text in it.

    Args:
        id: As the mark at the cut names it.
        offset: Where to begin, in bytes from the start.
        limit: How many bytes to read.
        find: A text to look for from the offset on, instead of reading: where it is, and what is around it.
    """
    blob, is_hidden = _blob(ctx, id)
    return ToolExecutionResult(content=[TextBlock(text=_read(blob, offset, limit, find))], hidden=is_hidden)


def _read(blob: Blob, offset: int, limit: int, find: str) -> str:
    if offset >= blob.size:
        raise ToolRefused(f"the result has {blob.size} bytes; there is nothing at offset {offset}")
    if find:
        return _matches(blob, offset, find)
    body = _aligned(_part(blob, offset, limit + 4), limit)  # the last character of a page may have four bytes
    text, end = body.decode(errors="replace"), offset + len(body)
    rest = f"offset {end} has the next of {blob.size - end} bytes" if end < blob.size else "this is the end"
    return f"{text}\n[bytes {offset} to {end} of {blob.size}; {rest}]"


def _blob(ctx: RunContext, id: str) -> tuple[Blob, bool]:
    """The whole result, and whether it is hidden from owners. Raises ToolRefused, with the same message for an unknown
    result and another user's."""
    unknown = ToolRefused(f"there is no result {id!r} here; give the id that the mark at the cut names")
    try:
        run, generation, path = id.split(":", 2)
        rows = JournalEntry.objects.filter(run=UUID(run), generation=int(generation), path=path, kind="tool.call")
    except ValueError:
        raise unknown from None
    readable = rows.filter(_readable(ctx)).only("digests", "request", "result").order_by("-seq")
    entry = next((row for row in readable if WHOLE in (row.digests or {})), None)
    blob = None if entry is None else Blob.objects.filter(id=entry.digests[WHOLE]).first()
    if entry is None or blob is None:
        raise unknown
    internalize([entry])
    return blob, is_marked("tool.call", entry.request, entry.result)


def _readable(ctx: RunContext) -> Q:
    """Rows of the run's session, of its owner in its tenant, and of the runs that its past was copied from."""
    readable = Q(run__session_id=ctx.session_id) | Q(run_id__in=_origins(UUID(ctx.run_id)))
    if ctx.user_id is not None:
        readable |= Q(run__owner_id=ctx.user_id, run__tenant=ctx.tenant_id)
    return readable


def _origins(run_id: UUID) -> list[UUID]:
    run_ids: list[UUID] = []
    here: UUID | None = run_id
    while here is not None and len(run_ids) < MAX_FORKS:
        run_ids.append(here)
        here = Run.objects.filter(id=here).values_list("forked_from", flat=True).first()
    return run_ids


def _pieces(blob: Blob) -> Iterator[bytes]:
    """The body from its start, decompressed piece by piece: the whole is never in memory."""
    packed = memoryview(blob.body)
    if not blob.encoding.endswith("+zlib"):
        yield bytes(packed)
        return
    unpacker = zlib.decompressobj()
    for start in range(0, len(packed), _PACKED):
        left: Any = packed[start : start + _PACKED]
        while left:
            yield unpacker.decompress(left, _STEP)
            left = unpacker.unconsumed_tail
    yield unpacker.flush()


def _part(blob: Blob, offset: int, size: int) -> bytes:
    part, position = bytearray(), 0
    for piece in _pieces(blob):
        if position + len(piece) > offset:
            part += piece[max(0, offset - position) :]
        position += len(piece)
        if len(part) >= size:
            break
    return bytes(part[:size])


def _aligned(body: bytes, limit: int) -> bytes:
    """At most `limit` bytes, or one character, without half a character at the end."""
    end = min(limit, len(body))
    while end < len(body) and end > 0 and body[end] & 0xC0 == 0x80:
        end -= 1
    if not end:  # one character longer than the page
        end = next((index for index in range(1, len(body)) if body[index] & 0xC0 != 0x80), len(body))
    return body[:end]


def _matches(blob: Blob, offset: int, text: str) -> str:
    wanted = re.compile(re.escape(text.encode()), re.IGNORECASE)
    matches: list[str] = []
    window, start = b"", 0  # unpacked bytes, and where in the whole they begin
    end = 0
    after = offset
    keep = len(text.encode()) + AROUND
    pieces = _pieces(blob)
    ended = False
    while not ended and len(matches) < MAX_FOUND:
        piece = next(pieces, None)
        ended = piece is None
        window += piece or b""
        end = start + len(window)
        # A match that begins near the end is searched again, with the next piece.
        sure = end if ended else end - keep
        for match in wanted.finditer(window, max(0, after - start)):
            if start + match.end() > sure or len(matches) == MAX_FOUND:
                break
            around = window[max(0, match.start() - AROUND) : match.end() + AROUND].decode(errors="ignore")
            matches.append(f"at {start + match.start()}: …{around}…")
            after = start + match.end()
        after = max(after, sure - keep)
        cut = max(0, len(window) - 2 * keep - AROUND)
        window, start = window[cut:], start + cut
    if not matches:
        return f"{text!r} does not occur from offset {offset} on"
    more = f"\n[the first {MAX_FOUND}; look again from offset {after} on]" if len(matches) == MAX_FOUND else ""
    return "\n".join(matches) + more
