"""ResponseCache: the same call of the same user is answered from Django's cache."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.db import connections

from ravi_django.conf import conf
from ravi_django.kernel import ChatContext, ChatMessage, ChatMiddleware, InvalidInputError, ModelResponse, Role
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.middleware import CallNext

log = logging.getLogger("ravi.cache")

SCOPES = ("user", "tenant", "site")
TIMEOUT_S = 1.0  # a cache that takes longer counts as away
AWAY_S = 10.0  # how long a cache that is away is not used
MAX_BYTES = 512 * 1024  # of an answer that is kept
_FORM = 1  # of the entries
_COMPLETE = ("stop", "tool_calls")  # finish reasons of complete answers


class ResponseCache(ChatMiddleware):
    """Answer a repeated model call from Django's cache: at once, at no cost.

    ttl: seconds that an answer is valid. scope: share answers within the "user" (in the same tenant; the default), the
    "tenant" or the "site". Runs without an owner share among themselves. alias: of the cache in `CACHES`;
    RAVI["CACHE_ALIAS"] by default.

    Calls are the same with the same model (name, address and parameters; a client without these shares within its
    agent), messages (system message and history included), options and tools. Only complete answers are kept, no
    errors. A hit is recorded with `cached`, no usage and a cost of 0; a replay needs no cache. An unreadable entry is a
    miss, and a cache that is away is not used for a while: neither fails a call. A PIIRedaction before it in the list
    keeps personal data out of the cache. Raises InvalidInputError, with the field.
    """

    def __init__(self, *, ttl: float | timedelta = 3600.0, scope: str = "user", alias: str | None = None) -> None:
        if scope not in SCOPES:
            raise InvalidInputError(f"scope is one of {', '.join(SCOPES)}, not {scope!r}", field="scope")
        if alias is not None and alias not in settings.CACHES:
            raise InvalidInputError(f"alias {alias!r} is not in CACHES: {', '.join(settings.CACHES)}", field="alias")
        self.ttl, self.scope, self.alias = check_seconds("ttl", ttl), scope, alias
        self._threads: ThreadPoolExecutor | None = None
        self._away_until = 0.0

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        key = self._key(context)
        cached = await self._reach(self._read, key)
        if isinstance(cached, ModelResponse):
            context.response = cached
            return
        await call_next()
        response = context.response
        if response is not None and context.made and _is_whole(response):
            body = await asyncio.to_thread(_encode, response) if len(response.text) > 10_000 else _encode(response)
            if len(body) <= MAX_BYTES:
                await self._reach(self._write, key, body)

    def _key(self, context: ChatContext) -> str:
        """A hash of all that the answer depends on, and of its scope."""
        ctx = context.ctx
        owner = {"user": [ctx.tenant_id, ctx.user_id], "tenant": [ctx.tenant_id], "site": []}[self.scope]
        client = _client(context.model) or str(ctx.agent_id)
        asked = [_FORM, self.scope, owner, client, context.model.name]
        asked += [context.options.digest, context.options.tools_digest]
        hashed = hashlib.sha256(json.dumps(asked).encode())
        for message in context.messages:
            hashed.update(message.digest)
        return f"ravi.response.{hashed.hexdigest()}"

    async def _reach(self, function: Callable[..., Any], *args: Any) -> Any:
        """On a thread of the cache's own, with a timeout; None when it is away."""
        if time.monotonic() < self._away_until:
            return None
        if self._threads is None:  # made when first used: a worker forks
            self._threads = ThreadPoolExecutor(4, thread_name_prefix="ravi-cache")
        work = asyncio.get_running_loop().run_in_executor(self._threads, partial(_on_thread, function, *args))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await work
        except Exception as error:
            self._away_until = time.monotonic() + AWAY_S
            log.warning("the response cache is away: %r", error, extra={"action": "cache.away"})
            return None

    def _read(self, key: str) -> ModelResponse | None:
        body = self._cache.get(key)
        if body is None:
            return None
        try:
            return _decode(body)
        except Exception as error:
            log.warning("an entry of the response cache is broken: %r", error, extra={"action": "cache.broken"})
            return None

    def _write(self, key: str, body: str) -> None:
        self._cache.set(key, body, self.ttl)

    @property
    def _cache(self) -> Any:
        return caches[self.alias or conf.CACHE_ALIAS]


def _client(model: Any) -> Any:
    """The address and parameters of a client, without keys; None for a client that does not have them."""
    if isinstance(models := getattr(model, "models", None), tuple):
        parts = [_client(one) for one in models]
        return None if None in parts else parts
    if not isinstance(params := getattr(model, "params", None), dict):
        return None
    return [model.name, getattr(model, "_api_base", None), json.dumps(params, sort_keys=True, default=repr)]


def _on_thread(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    finally:
        connections.close_all()  # of a cache that is a table


def _is_whole(response: ModelResponse) -> bool:
    return response.finish_reason in _COMPLETE and bool(response.content)


def _encode(response: ModelResponse) -> str:
    return json.dumps(
        {
            "form": _FORM,
            "content": response.message.to_json()["content"],
            "model": response.model,
            "finish_reason": response.finish_reason,
        }
    )


def _decode(body: Any) -> ModelResponse:
    fields = json.loads(body)
    if fields["form"] != _FORM or not fields["content"]:
        raise ValueError("of another form")
    message = ChatMessage.model_validate({"role": Role.ASSISTANT, "content": fields["content"]})
    return ModelResponse(
        message=message, cost=0.0, model=fields["model"], finish_reason=fields["finish_reason"], cached=True
    )
