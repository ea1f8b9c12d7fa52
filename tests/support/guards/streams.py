"""Streams: one end, which is the last, and no gap but one that is announced once."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, UNIT, Mutant

BUFFERS = (UNIT + "test_buffers.py",)
END = (UNIT + "test_stream_end.py",)

STREAMS = [
    Mutant(
        "stream: none holds the worker of a WSGI server",
        "ravi_django/api/events.py",
        "if not is_asgi and not",
        "if False and not",
        ("tests/acceptance/api/test_api_events.py",),
    ),
    Mutant(
        "stream: nothing comes behind the end, in Valkey",
        RUNTIME + "buffer_valkey.py",
        "elseif ended >= 0 then",
        "elseif false then",
        BUFFERS,
    ),
    Mutant(
        "stream: a reader that is cancelled in the moment of a hint goes",
        RUNTIME + "buffer_valkey.py",
        """                async with asyncio.timeout(POLL_S):  # before 3.12 wait_for may swallow a cancellation
                    await event.wait()
""",
        "                await asyncio.wait_for(event.wait(), POLL_S)\n",
        BUFFERS,
    ),
    Mutant(
        "stream: a retry of the root goes on behind the end, in Valkey",
        RUNTIME + "buffer_valkey.py",
        "if ARGV[i] == root and epoch > ended then ended = -1 end",
        "",
        BUFFERS,
    ),
    Mutant(
        "stream: a flush that is sent again adds nothing",
        RUNTIME + "buffer_valkey.py",
        "if ARGV[5] ~= '' then had =",
        "if false then had =",
        (UNIT + "test_publish.py",),
    ),
    Mutant(
        "stream: nothing comes behind the end, in the table",
        RUNTIME + "buffer_database.py",
        "elif end in seen:",
        "elif False:",
        BUFFERS,
    ),
    Mutant(
        "stream: a lost tree is begun anew once",
        RUNTIME + "buffer_valkey.py",
        "if ARGV[1] == 'restart' and redis.call('EXISTS', KEYS[1]) == 1 then return {} end",
        "",
        BUFFERS,
    ),
    Mutant(
        "stream: what the buffer has lost is not archived",
        RUNTIME + "archive.py",
        'if any(frame["type"] == "stream.done" and frame["attempt"] == str(epoch) for frame in reversed(frames)):',
        "if True:",
        END,
    ),
    Mutant(
        "stream: an ended tree is published by one process at a time",
        RUNTIME + "publish.py",
        "ours = Run.objects.select_for_update(no_key=True, skip_locked=True)",
        "ours = Run.objects.all()",
        END,
    ),
    Mutant(
        "stream: an archived one is not begun anew",
        RUNTIME + "publish.py",
        "if is_lost and root.is_terminal and root.published_at is not None:",
        "if False:",
        END,
    ),
]
