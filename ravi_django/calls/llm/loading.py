"""The lazy import of litellm, which takes 2 to 3 s and 170 MB."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from typing import Any

from ravi_django.calls.llm.errors import redact_logs

GEMINI = "litellm.llms.vertex_ai.gemini.transformation"
LAST_TESTED = "1.110.2"  # litellm, with `make providers`; requirements.txt pins it, pyproject.toml has the floor
IMAGE_LIMIT = "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB"  # litellm's name, in the environment and in its modules

_lock = threading.Lock()
_litellm: Any = None


def load_litellm() -> Any:
    """Import and configure litellm once. Safe from any thread. The first call is slow, see `aload_litellm`."""
    global _litellm
    if _litellm is None:
        with _lock:
            # Another thread may have imported it meanwhile.
            _litellm = _litellm or _import()
    return _litellm


async def aload_litellm() -> Any:
    """`load_litellm` without blocking the event loop."""
    return _litellm or await asyncio.to_thread(load_litellm)


def is_imported() -> bool:
    """Whether litellm is imported, maybe by the site, or an import has begun."""
    return "litellm" in sys.modules


def is_loaded() -> bool:
    return _litellm is not None


def warm() -> None:
    """Import litellm ahead of the first model call. Workers call it at start, after fork."""
    load_litellm()


async def close_clients() -> None:
    """Close the HTTP connections that model calls left open on the running loop. Call it before the loop ends."""
    if not is_imported():
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
    # Anthropic and some others use one client of the module, which opens a new session on its next use.
    shared = getattr(load_litellm().__dict__.get("module_level_aclient"), "client", None)
    transport = getattr(shared, "_transport", None)
    if transport is not None:
        await transport.aclose()


def _import() -> Any:
    # Without these, the import downloads a price list, and the first call a list of headers.
    for name in ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"):
        os.environ.setdefault(name, "True")
    limit = float(os.environ.setdefault(IMAGE_LIMIT, "5"))  # of each address; litellm's default is 50
    import litellm

    for name, module in list(sys.modules.items()):  # the site may have imported litellm before
        if name.startswith("litellm.") and IMAGE_LIMIT in getattr(module, "__dict__", ()):
            setattr(module, IMAGE_LIMIT, limit)
    if (gemini := sys.modules.get(GEMINI)) is not None:  # it drops the second of two equal calls, which Gemini refuses
        gemini.__dict__["check_if_part_exists_in_parts"] = lambda *_, **_options: False
    redact_logs()
    if "LITELLM_LOG" not in os.environ:  # else every call writes two lines to the log
        logging.getLogger("LiteLLM").setLevel(logging.WARNING)
    litellm.suppress_debug_info = True  # else it prints advertisements to the terminal on errors
    litellm.telemetry = False
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize  # a ruler or a table has a hundred equal pieces
    litellm.disable_hf_tokenizer_download = True  # counting tokens must not use the network
    return litellm
