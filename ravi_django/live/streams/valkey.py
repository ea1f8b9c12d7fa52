"""The event buffer in Valkey or Redis: number, append and hint in one script, pipelined for all trees of a flush."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import Context
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from pydantic_core import from_json
from redis.backoff import NoBackoff
from redis.retry import Retry

from ravi_django.kernel import AgentId, TopicId, stream_topic
from ravi_django.live.streams.buffer import LIVE_S, POLL_S, Batch, Lost, MarkReached
from ravi_django.live.streams.frames import TEXTS

TTL_S = 24 * 3600  # of a tree's frames after the last frame
ENDED_TTL_S = 900  # after the end, when the archive has them
LINGER_S = 5.0  # a subscription connection stays open so long after its last reader
RETRY_S = 0.5
HINT_S = 0.5  # timeout of a hint about requests
HINT_REST_S = 30.0

log = logging.getLogger("ravi.streams")

# KEYS: meta hash, stream of frames, set of durable keys and an empty one. The hash has n: last number; began: the last
# number before its first; server: the run_id of its server then; gen: the root's generation; cut: the last number
# before that; e:<run>: newest epoch seen; end: the root's epoch of its end; w:<writer>: how many frames it has sent.
# These stay until the hash expires: an e: for each run of the tree, a w: for each process that has streamed for it.
# ARGV: start ("fresh": from 0, "restart": from the mark, "go": must be there), mark, ttl, channel, writer, its frames
# before this batch, its last number, server, generation, then run, epoch, key, body, topic for each frame. A topic is a
# channel, and a key while it has a reader: a frame is published there once, as it is appended.
# It is lost if one of the keys was evicted, if another server process began it (after a restart or a failover an older
# state may be back), or if it has fewer frames of the writer than were sent. A restart of a stream that is not lost
# appends nothing: another writer has restarted it. After its end only a later epoch of the root continues a stream:
# frames of a child in another process would come after the end. A new generation deletes the frames from before the
# previous one. `#!lua`: a full server refuses the script before its first write.
_APPEND = """#!lua
local known = redis.call('HMGET', KEYS[1], 'n', 'began', 'server', 'gen', 'cut', 'end', 'w:' .. ARGV[5])
local function number(at, default) return tonumber(known[at] or default) end
local function set(...) redis.call('HSET', KEYS[1], ...) end
local start, mark, first, last = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[6]), tonumber(ARGV[7])
local n, began, sent, ended = number(1, 0), number(2, 0), number(7, 0), number(6, -1)
local there = redis.call('EXISTS', unpack(KEYS))
local lost = there < 3 or known[3] ~= ARGV[8] or (began < last and sent < first)
if start == 'restart' then
  if not lost then return {} end
  redis.call('DEL', unpack(KEYS))
  known, there, n, sent, ended = {}, 0, mark, 0, -1
elseif lost and not (there == 0 and start == 'fresh') then return 'lost'
elseif n + (#ARGV - 9) / 5 > mark then return {'mark', n} end
if there == 0 then
  set('began', n, 'server', ARGV[8])
  redis.call('SADD', KEYS[3], '')
end
if tonumber(ARGV[9]) > number(4, 0) then
  local cut = number(5, 0)
  for _, frame in ipairs(redis.call('XRANGE', KEYS[2], '-', cut .. '-0')) do
    if frame[2][4] ~= '' then redis.call('SREM', KEYS[3], frame[2][4]) end
  end
  redis.call('XTRIM', KEYS[2], 'MINID', cut + 1 .. '-0')
  set('gen', ARGV[9], 'cut', n)
end
local before, out = n, {}
local root = string.sub(ARGV[4], 7, -2)
local had = math.max(0, sent - first)
for k = 1, had do out[k] = 0 end
for i = 10 + 5 * had, #ARGV, 5 do
  local field, epoch, key = 'e:' .. ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local seen = tonumber(redis.call('HGET', KEYS[1], field) or '-1')
  if ARGV[i] == root and epoch > ended then ended = -1 end
  local done = string.find(key, ':done:', 1, true)
  if epoch < seen and (key == '' or done) then
    out[#out + 1] = -1
  elseif key ~= '' and redis.call('SISMEMBER', KEYS[3], key) == 1 then
    out[#out + 1] = 0
  elseif ended >= 0 then
    out[#out + 1] = -1
  else
    n = n + 1
    redis.call('XADD', KEYS[2], n .. '-0', 'f', ARGV[i + 3], 'k', key)
    out[#out + 1] = n
    local topic = ARGV[i + 4]
    if topic ~= '' and redis.call('EXISTS', topic) == 1 then redis.call('PUBLISH', topic, ARGV[i + 3]) end
    if key ~= '' then redis.call('SADD', KEYS[3], key) end
    if done then ended = epoch end
  end
  if epoch > seen then set(field, epoch) end
end
set('n', n, 'end', ended)
if ARGV[5] ~= '' and start ~= 'restart' then set('w:' .. ARGV[5], first + #out) end
for k = 1, 3 do redis.call('EXPIRE', KEYS[k], ARGV[3]) end
if n > before then redis.call('PUBLISH', ARGV[4], n) end
return out
"""

# ARGV: first number, how many frames, how many bytes. One frame at a time: the server holds no more than it sends.
_READ = """#!lua flags=no-writes
if redis.call('EXISTS', unpack(KEYS)) < 3 then return false end
local out, from, room = {}, ARGV[1], tonumber(ARGV[3])
for k = 1, tonumber(ARGV[2]) do
  local row = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', 1)[1]
  room = row and room - #row[2][2]
  if not row or room < 0 and k > 1 then break end
  out[k], from = {row[1], row[2][2]}, '(' .. row[1]
end
return out
"""


class ValkeyBuffer:
    def __init__(self, url: str) -> None:
        self._url = url
        timeouts = {"socket_timeout": 5, "socket_connect_timeout": 2}
        self._client = redis.Redis.from_url(url, **timeouts)
        self._database = self._client.get_connection_kwargs().get("db", 0)
        # A retry would send the run_id of one server to another.
        once = {"retry": Retry(NoBackoff(), 0), "redis_connect_func": _connected}
        self._appending = redis.Redis.from_url(url, **timeouts, **once)
        self._reading = self._client.register_script(_READ)
        self._script = self._appending.register_script(_APPEND)
        self._hints = redis.Redis.from_url(url, socket_timeout=HINT_S, socket_connect_timeout=HINT_S)
        self._no_hint_before = 0.0
        self._hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub] = WeakKeyDictionary()

    def append(self, batches: list[Batch]) -> list[list[int] | Exception]:
        with self._appending.pipeline(transaction=False) as pipe:
            pipe.scripts.add(self._script)
            pipe.load_scripts()  # over the connection that the batches will take
            pipe.scripts.clear()
            server = pipe.connection.server
            for batch in batches:
                start = "restart" if batch.restart else "fresh" if batch.fresh else "go"
                args: list[Any] = [start, batch.mark, TTL_S, _channel(batch.tree)]
                args += [batch.writer, batch.first, batch.last, server, batch.generation]
                for frame in batch.frames:
                    args += [frame.source.run, frame.source.epoch, frame.key, frame.encoded()]
                    is_live = frame.type in TEXTS and batch.writer  # not one that is made again
                    args.append(_live_channel(self._database, frame.source.agent) if is_live else "")
                pipe.evalsha(self._script.sha, 3, *_keys(batch.tree), *args)
            return [_outcome(reply) for reply in pipe.execute(raise_on_error=True)]

    def read(self, tree: str, after: int, limit: int, room: int | None = None) -> list[dict[str, Any]] | None:
        start = f"({after}-0" if after > 0 else "-"
        if room is not None:
            sent = self._reading(_keys(tree), [start, limit, room])
            return None if sent is None else _frames((number, {b"f": body}) for number, body in sent)
        pipe = self._client.pipeline(transaction=False)
        pipe.exists(*_keys(tree))
        pipe.xrange(_keys(tree)[1], min=start, count=limit)
        there, rows = pipe.execute()
        return _frames(rows) if there == 3 else None

    def newest(self, tree: str, before: int | None, limit: int) -> list[dict[str, Any]]:
        last = "+" if before is None else f"({before}-0"
        return _frames(self._client.xrevrange(_keys(tree)[1], max=last, count=limit))

    def read_many(self, trees: Sequence[str], limit: int) -> list[list[dict[str, Any]]]:
        pipe = self._client.pipeline(transaction=False)
        for tree in trees:
            pipe.xrange(_keys(tree)[1], count=limit)
        return [_frames(rows) for rows in pipe.execute()]

    def expire(self, ended: Mapping[str, int]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for tree in ended:
            for key in _keys(tree):
                pipe.expire(key, ENDED_TTL_S)
        pipe.execute()

    def forget(self, trees: Sequence[str]) -> None:
        if trees:
            self._client.unlink(*(key for tree in trees for key in _keys(tree)))

    def ping(self) -> None:
        self._client.ping()

    def memory(self) -> dict[str, Any]:
        """The state of the server's memory; empty where it cannot be read. Hosted servers forbid CONFIG."""
        try:
            return dict(self._client.info("memory"))
        except (redis.RedisError, OSError):
            return {}

    def hint(self, topic: str) -> None:
        """After a failure, send no hint for HINT_REST_S: the caller has committed and must not wait."""
        if time.monotonic() < self._no_hint_before:
            return
        try:
            self._hints.publish(_channel(topic), "")
        except (redis.RedisError, OSError) as error:
            self._no_hint_before = time.monotonic() + HINT_REST_S
            log.warning("no hint sent: %s: %s", type(error).__name__, error, extra={"action": "hint.failed"})

    def watch(
        self, topic: str, every_s: float = POLL_S, take: Any = None
    ) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """`take` is called with each hint; what is published in a live topic is the frame, a subscription an int."""
        loop = asyncio.get_running_loop()
        hub = self._hubs.get(loop)
        if hub is None:
            hub = self._hubs[loop] = _Hub(self._url)
        return hub.watch(_channel(topic), every_s, take)

    def live(self, topic: TopicId) -> str:
        """The live topic's name here: a server's channels are those of all its databases."""
        return _live(self._database, topic)

    def ask_live(self, name: str) -> None:
        """Have its frames published for LIVE_S."""
        self._client.set(_channel(name), "", ex=LIVE_S)


def _connected(connection: Any) -> None:
    """Note the server's run_id on the connection: another process has another one. Empty where INFO is forbidden."""
    connection.on_connect()
    connection.send_command("INFO", "server")
    connection.server = b""
    with suppress(redis.ResponseError):
        connection.server = b"".join(re.findall(rb"run_id:(\w+)", connection.read_response()))


def _keys(tree: str) -> list[str]:
    return [f"ravi:{{{tree}}}:m", f"ravi:{{{tree}}}:s", f"ravi:{{{tree}}}:k"]


def _frames(rows: Any) -> list[dict[str, Any]]:
    return [{"seq": int(number.split(b"-")[0]), **from_json(fields[b"f"])} for number, fields in rows]


def _channel(tree: str) -> str:
    return f"ravi:{{{tree}}}"


def _live(database: int, topic: TopicId) -> str:
    return f"live:{database}:{topic}"


@lru_cache(1024)
def _live_channel(database: int, agent: str) -> str:
    return _channel(_live(database, stream_topic(AgentId.parse(agent))))


def _outcome(reply: Any) -> list[int] | Exception:
    if reply == b"lost":
        return Lost()
    if reply and reply[0] == b"mark":
        return MarkReached(int(reply[1]))
    return [int(number) for number in reply]


class _Hub:
    """One subscription connection for all readers of an event loop, however many sockets it serves.

    Readers register and unregister without an await, so one that is cancelled at any moment leaves nothing behind. A
    task keeps the subscriptions up to date.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._watchers: dict[str, set[Callable[[bytes | int], None]]] = {}
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, channel: str, every_s: float, take: Any = None) -> AsyncIterator[AsyncIterator[None]]:
        event = asyncio.Event()

        def notice(data: bytes | int) -> None:
            if take is not None:
                take(data)
            event.set()

        self._watchers.setdefault(channel, set()).add(notice)
        self._touch()
        try:
            yield self._hints(event, every_s)
        finally:
            self._watchers[channel].discard(notice)
            if not self._watchers[channel]:
                del self._watchers[channel]
            self._touch()

    async def _hints(self, event: asyncio.Event, every_s: float) -> AsyncIterator[None]:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):  # before 3.12 wait_for may swallow a cancellation
                    await event.wait()
            event.clear()
            yield

    def _touch(self) -> None:
        """The set of channels may have changed. Without channels no task is kept."""
        self._changed.set()
        if self._keeper is None and self._watchers:
            self._keeper = asyncio.create_task(self._keep(), context=Context())
            self._keeper.add_done_callback(self._keeper_ended)

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        self._keeper = None
        if not (keeper.cancelled() or keeper.cancelling()):
            self._touch()

    async def _keep(self) -> None:
        client = redis.asyncio.from_url(self._url, socket_connect_timeout=2, health_check_interval=15)
        # The confirmation of a subscription is a hint too: earlier ones did not arrive.
        pubsub = client.pubsub(ignore_subscribe_messages=False)
        reader: asyncio.Task[None] | None = None
        subscribed: set[str] = set()
        me = asyncio.current_task()
        assert me is not None
        try:
            # redis-py can swallow a cancellation, so check for one.
            while not me.cancelling() and (self._watchers or await self._change_within(LINGER_S)):
                self._changed.clear()
                wanted = set(self._watchers)
                try:
                    if new := wanted - subscribed:
                        await pubsub.subscribe(*new)
                    if gone := subscribed - wanted:
                        await pubsub.unsubscribe(*gone)
                except (redis.RedisError, OSError):  # readers poll until the server is back
                    await asyncio.sleep(RETRY_S)
                    continue
                subscribed = wanted
                reader = reader or asyncio.create_task(self._read(pubsub))
                if not me.cancelling():
                    await self._changed.wait()
        finally:
            if reader is not None:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
            with suppress(redis.RedisError, OSError):
                await pubsub.aclose()
                await client.aclose()

    async def _change_within(self, seconds: float) -> bool:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        return bool(self._watchers)

    async def _read(self, pubsub: Any) -> None:
        """Turn published hints into events. redis-py reconnects and subscribes again automatically; readers find missed
        frames by polling."""
        me = asyncio.current_task()
        while me is not None and not me.cancelling():
            try:
                message = await pubsub.get_message(timeout=None)
            except (redis.RedisError, OSError):
                await asyncio.sleep(RETRY_S)
                continue
            if message is not None:
                for notice in self._watchers.get(message["channel"].decode(), ()):
                    notice(message["data"])
