"""Polling a directory for files: they are told first, and put aside only then."""

from __future__ import annotations

from collections.abc import Sequence

from ravi_django.capabilities.feeds.drop import MOST, Drop, DropError, Taken
from ravi_django.capabilities.feeds.polled import Polled, SourceError
from ravi_django.conf import conf
from ravi_django.models import Source
from ravi_django.runtime.polling import Polling, register_poller

AT_ONCE_BYTES = 16 * 1024 * 1024  # of items held in memory; what lies beyond is for the next poll


async def poll_drop(source: Source, polling: Polling) -> Polled:
    return await polling.on_thread(source, _look, source.location, dict(source.options))


def _look(location: str, options: dict[str, object]) -> Polled:
    try:
        with Drop(location, conf.DROP_ROOTS) as drop:
            names = drop.names()
            taken = list(_taken(drop, names, options))
    except DropError as error:
        raise SourceError(str(error)) from None
    items = [item for file in taken for item in file.items]
    is_rest = len(names) == MOST or len(taken) < len(names)
    return Polled(items, next_in_s=1.0 if is_rest and taken else None, after=lambda: _put_aside(location, taken))


def _taken(drop: Drop, names: Sequence[str], options: dict[str, object]) -> Sequence[Taken]:
    found: list[Taken] = []
    size = 0
    for name in names:
        file = drop.take(name, options, most=int(conf.SOURCE_MAX_BYTES), most_text=int(conf.MAX_INPUT_BYTES))
        if file is None:
            continue
        found.append(file)
        size += sum(len(item.text) + 4 * len(str(item.extra)) for item in file.items)
        if size > AT_ONCE_BYTES:
            break
    return found


def _put_aside(location: str, taken: Sequence[Taken]) -> str:
    """After a crash before this, the same files are read again, and known. Returns what went wrong, in words."""
    wrong = [file.error for file in taken if file.error]
    try:
        with Drop(location, conf.DROP_ROOTS) as drop:
            for file in taken:
                try:
                    drop.put_aside(file)
                except DropError as error:
                    wrong.append(str(error))
    except DropError as error:
        wrong.append(str(error))
    return "\n".join(wrong)


register_poller(Source.Kind.DROP, poll_drop)
