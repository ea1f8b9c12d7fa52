"""Polling by the site's own code: the adapter that a source names."""

from __future__ import annotations

import asyncio
import copy

from ravi_django.capabilities.feeds.adapter import check_polled, find_source_adapter
from ravi_django.capabilities.feeds.polled import Polled, SourceError
from ravi_django.models import Source
from ravi_django.runtime.polling import Polling, register_poller
from ravi_django.runtime.store.sources import STATE

POLL_S = 120.0  # a poll that takes longer is given up: the source's lease ends not long after


async def poll_adapter(source: Source, polling: Polling) -> Polled:
    try:
        adapter = find_source_adapter(source.location)
    except LookupError as error:
        raise SourceError(str(error.args[0])) from None
    options = copy.deepcopy(source.options)
    state = options.pop(STATE, None)
    try:
        async with asyncio.timeout(POLL_S):
            found = await adapter.poll(state if isinstance(state, dict) else {}, options)
    except TimeoutError:
        raise SourceError(f"the adapter {source.location} took longer than {POLL_S:g} s") from None
    try:
        return check_polled(found)
    except (TypeError, ValueError) as error:
        raise SourceError(f"the adapter {source.location}: {error}") from None


register_poller(Source.Kind.ADAPTER, poll_adapter)
