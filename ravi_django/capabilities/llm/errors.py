"""Provider errors as the kernel's: worth a retry or not, in the provider's words.

Keys stay in the process: they are removed from errors and from the log lines of the clients.
"""

from __future__ import annotations

import logging
import os
import re
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from ravi_django.kernel.errors import ModelError, TransientError
from ravi_django.kernel.secrets import is_secret

_TRANSIENT_TYPES = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "BadGatewayError",
        "InternalServerError",
        "RateLimitError",
        "ServiceUnavailableError",
        "Timeout",
        "TransportError",  # httpx: a connection that broke in mid-stream
    }
)
_TRANSIENT_STATUS = frozenset({408, 409, 429})
_PREFIXES = re.compile(r"^(?:litellm\.\w+: )?(?:(?:\w+|Timeout )Error: )?(?:\w+Exception - )?")
_NOT_FETCHED = re.compile(  # as OpenAI, Anthropic and Google say it
    r"invalid_image_url|(?:unable|failed) to (?:down|up)?(?:load|fetch)|(?:error|timeout) while downloading"
    r"|cannot fetch content from the provided url|url_unreachable|could not (?:download|fetch)",
    re.IGNORECASE,
)
_NO_KEY = re.compile(  # as the clients of OpenAI, Anthropic, Google and Amazon say it
    r"missing credentials|missing \w+ api key|no key is set|unable to locate credentials", re.IGNORECASE
)
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*KEY\b")
_MAX_WORDS = 2_000  # characters of a provider's message that are worth keeping


def translate_error(error: Exception, *, secrets: Iterable[str] = ()) -> TransientError | ModelError:
    """What to raise in place of `error`, an exception of litellm or of what it is built on.

    Rate limits, timeouts, connection faults, 408, 409, 429 and 5xx are transient, all else is not. A 429 for an
    empty account is not either: waiting does not fill it.
    """
    # litellm wraps whatever breaks a running stream; the cause is what the provider said.
    error = getattr(error, "original_exception", None) or error
    words = redact(_words_of(error), secrets)[:_MAX_WORDS]  # behind: half a key is not known for one
    kind = type(error).__name__
    status = _status_of(error)
    if _is_transient(error, status):
        return TransientError(words, type=kind, retry_after=_retry_after(error), status=status)
    return ModelError(words, type=kind, status=status)


def missing_key(error: Exception, model: str, variables: Sequence[str]) -> ModelError | None:
    """What to raise where `error` means that there is no key: litellm takes some of these for outages. `variables` are
    those of the environment that may hold the model's key, and are not there."""
    words = _words_of(error)
    said = _NO_KEY.search(words) is not None
    if not said and not (variables and _status_of(error) == 401):
        return None
    names = variables or list(dict.fromkeys(_VARIABLE.findall(words))) or ["the variables of its provider"]
    more = "" if said else f"; the provider said: {redact(words, ())[:_MAX_WORDS]}"
    how = f"set {' or '.join(names)} in the environment of the processes that run agents"
    return ModelError(f"model {model} has no API key: {how}{more}", type="MissingKeyError", status=401)


def is_of_address(error: Exception) -> bool:
    """Whether somebody could not, or would not, fetch an image or a document that a message names by its address."""
    if "ImageFetchError" in {cls.__name__ for cls in type(error).__mro__}:  # litellm's own
        return True
    return _status_of(error) == 400 and _NOT_FETCHED.search(str(error)) is not None


def _is_transient(error: Exception, status: int | None) -> bool:
    said = _body_field(error, "code"), _body_field(error, "type")
    if "insufficient_quota" in said:
        return False
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if kinds & _TRANSIENT_TYPES or isinstance(error, TimeoutError | ConnectionError):
        return True
    if status is None:
        # An error event inside a stream has no status; all but the caller's own faults is the provider's.
        return "APIError" in kinds and not any("invalid" in str(word) for word in said)
    return status in _TRANSIENT_STATUS or status >= 500


def _body_field(error: Exception, field: str) -> Any:
    body = getattr(error, "body", None)
    return body.get(field) if isinstance(body, Mapping) else None


def _status_of(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _words_of(error: Exception) -> str:
    message = _body_field(error, "message")
    if not isinstance(message, str) or not message:
        text = str(error)
        message = _PREFIXES.sub("", text, count=1) or text or type(error).__name__
    return message


def _retry_after(error: Exception) -> float | None:
    """Seconds that the provider asked to wait; the header is seconds or an HTTP date."""
    for headers in _headers_of(error):
        value = headers.get("retry-after")
        if not value:
            continue
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            continue
    return None


def _headers_of(error: Exception) -> Iterable[Mapping[str, Any]]:
    response = getattr(error, "response", None)
    candidates = (
        getattr(error, "litellm_response_headers", None),
        getattr(response, "headers", None),
        getattr(error, "headers", None),
    )
    return [headers for headers in candidates if isinstance(headers, Mapping)]


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
