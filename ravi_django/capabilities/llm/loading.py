"""The lazy import of litellm: it takes 2 to 3 s and 170 MB, so only a process that calls a model pays for it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from typing import Any

from ravi_django.capabilities.llm.errors import redact_logs

_lock = threading.Lock()
_litellm: Any = None


def load_litellm() -> Any:
    """litellm, imported once and made quiet. Safe from any thread; slow the first time: see `aload_litellm`."""
    global _litellm
    if _litellm is None:
        with _lock:
            # A second thread waited for the first one's import.
            _litellm = _litellm or _import()
    return _litellm


async def aload_litellm() -> Any:
    """The same without stalling the event loop."""
    return _litellm or await asyncio.to_thread(load_litellm)


def warm() -> None:
    """Import litellm ahead of the first model call. Workers call it at start, after fork."""
    load_litellm()


async def close_clients() -> None:
    """Close the HTTP connections that model calls left open on the running loop. Call it before the loop ends."""
    if "litellm" not in sys.modules:
        return
    cache = load_litellm().in_memory_llm_clients_cache
    suffix = cache.update_cache_key_with_event_loop("")  # litellm keeps a client per loop
    for key in [key for key in cache.cache_dict if key.endswith(suffix)]:
        client = cache.cache_dict.pop(key, None)
        close = getattr(client, "close", None) or getattr(client, "aclose", None)
        if close is not None:
            closing = close()
            if asyncio.iscoroutine(closing):
                await closing
    # Anthropic's and some others' go through one client of the module: it makes itself a new session when asked again.
    shared = getattr(load_litellm().__dict__.get("module_level_aclient"), "client", None)
    transport = getattr(shared, "_transport", None)
    if transport is not None:
        await transport.aclose()


def _import() -> Any:
    # Without them, the import fetches a price list over the network, and the first call a list of headers.
    for name in ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"):
        os.environ.setdefault(name, "True")
    import litellm

    redact_logs()
    if "LITELLM_LOG" not in os.environ:  # else every call says so twice in the worker's log
        logging.getLogger("LiteLLM").setLevel(logging.WARNING)
    litellm.suppress_debug_info = True  # else it prints advertisements to the terminal on errors
    litellm.telemetry = False
    litellm.disable_hf_tokenizer_download = True  # counting tokens must not reach for the network
    return litellm
