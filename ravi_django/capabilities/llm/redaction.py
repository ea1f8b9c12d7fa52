"""Keys stay in the process: they are taken out of errors and of the log lines that the clients write."""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Iterable

from ravi_django.kernel.secrets import is_secret

_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|xai|key)-[\w-]{12,}|\bAIza[\w-]{30,}|(?<=Bearer )[\w.~+/-]{8,}")
_USER = re.compile(r"(?<=://)[^\s/@:]*:[^\s/]*@")  # and its password
_NAMED = re.compile(r"(?<![\w.-])([\w.-]{1,60})=['\"]?([^\s&'\"#<>]+)")  # of a query, or of a database's address
_SHORTEST = 4  # characters: a shorter one is a placeholder, and would shred the words
_CLIENTS = (
    "LiteLLM",
    "openai._base_client",
    "anthropic._base_client",
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "aiohttp.client",
)


class Keys:
    """The keys of one model client. They have no repr, are not pickled, and are known to the log's filter while they
    live."""

    __slots__ = ("__weakref__", "_values")

    def __init__(self, values: Iterable[object]) -> None:
        self._values = frozenset(value for value in values if isinstance(value, str) and len(value) >= _SHORTEST)
        _known.add(self)

    def __repr__(self) -> str:
        return "Keys(…)"

    def __reduce__(self) -> str:
        raise TypeError("keys stay in the process that has them, and are not pickled")


_known: weakref.WeakSet[Keys] = weakref.WeakSet()


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given secrets, the keys of living clients, the values of variables such as `*_API_KEY`, the
    `user:password@` of addresses, the values of parameters such as `api_key=`, and what looks like a key."""
    found = {value for name, value in os.environ.items() if is_secret(name) and len(value) >= _least(name)}
    found.update(secret for secret in secrets if len(secret) >= _SHORTEST)
    for keys in list(_known):
        found |= keys._values
    for secret in sorted(found, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(secret, "[key]")
    text = _NAMED.sub(_without_value, _USER.sub("[key]@", text))
    return _KEY_LIKE.sub("[key]", text)


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}=[key]" if is_secret(found[1]) else found[0]


_format = logging.Formatter()


def _least(name: str) -> int:
    return _SHORTEST if name.endswith("_API_KEY") else 2 * _SHORTEST  # a password may be a common word


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        clean = redact(said)
        if clean != said:
            record.msg, record.args = clean, ()
        if record.exc_info:
            told = _format.formatException(record.exc_info)
            clean = redact(told)
            if clean != told:
                record.exc_text, record.exc_info = clean, None
        return True


_filter = _Filter()


def redact_logs() -> None:
    """On the loggers of the HTTP clients: their lines hold addresses and headers. Once is enough; more does no harm."""
    for name in _CLIENTS:
        logging.getLogger(name).addFilter(_filter)


def words(raised: BaseException) -> str:
    """An exception for the model, without keys and passwords; one that cannot even say what it is, too."""
    try:
        return redact(f"{type(raised).__name__}: {raised}")
    except Exception:
        return type(raised).__name__
