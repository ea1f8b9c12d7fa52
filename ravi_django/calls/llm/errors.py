"""Translate provider errors to TransientError or ModelError, and remove keys from errors and log lines."""

from __future__ import annotations

import logging
import os
import re
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from ravi_django.calls.llm.names import Fault, no_key_in
from ravi_django.kernel.errors import ModelError, TransientError, message_of
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
        "TransportError",  # httpx: the connection broke during a stream
    }
)
_TRANSIENT_STATUS = frozenset({408, 409, 429})
_PREFIXES = re.compile(r"^(?:litellm\.\w+: )?(?:(?:\w+|Timeout )Error: )?(?:\w+Exception - )?")
_NOT_FETCHED = re.compile(  # messages of OpenAI, Anthropic and Google
    r"invalid_image_url|(?:unable|failed) to (?:down|up)?(?:load|fetch)|(?:error|timeout) while downloading"
    r"|cannot fetch content from the provided url|url_unreachable|could not (?:download|fetch)",
    re.IGNORECASE,
)
_REASONING = re.compile(r"encrypted|reasoning|signature|thought|thinking", re.IGNORECASE)
_NO_KEY = re.compile(  # messages of the clients of OpenAI, Anthropic, Google and Amazon
    r"missing credentials|missing \w+ api key|no key is set|unable to locate credentials", re.IGNORECASE
)
_FAULT = re.compile(  # codes of an error event that a repeat does not help against
    r"invalid|bad.?request|context.?length|content.?(?:policy|filter)|too.?(?:large|long)|auth|permission|forbidden"
    r"|denied|not.?found|unsupported|billing|payment|credit",
    re.IGNORECASE,
)
_STATUS = re.compile(r"[45]\d\d")
_NO_FUNDS = re.compile(r"insufficient_quota|billing_")  # codes of a 429 that no wait helps against
_SIZES = re.compile(r"limit:? ([\d,]+), requested:? ([\d,]+)", re.IGNORECASE)  # OpenAI's, of a limit per minute
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*KEY\b")
_MAX_MESSAGE = 2_000  # characters of a provider's message that are kept


def translate_error(error: Exception, *, secrets: Iterable[str] = ()) -> TransientError | ModelError:
    """The error to raise instead of `error`, an exception of litellm or of its clients.

    Rate limits, timeouts, connection errors, 408, 409, 429 and 5xx are transient, others are not. A 429 for an account
    without funds, or for a request above the limit, is not transient: waiting does not help.
    """
    # litellm wraps the error that breaks a running stream; the cause has the provider's message.
    error = getattr(error, "original_exception", None) or error
    message = redact(_message_of(error), secrets)[:_MAX_MESSAGE]  # cut after redaction: half a key is not recognized
    kind = type(error).__name__
    status = _status_of(error)
    if _is_transient(error, status):
        return TransientError(message, type=kind, retry_after=_retry_after(error), status=status)
    return ModelError(message, type=kind, status=status)


def missing_key(error: Exception, model: str, fault: Fault | None) -> ModelError | None:
    """The error to raise if `error` means that the API key is missing; else None. litellm reports some of these as
    outages. `fault`: the variable of the model's key, if none is set."""
    message = _message_of(error)
    is_explicit = _NO_KEY.search(message) is not None
    if not is_explicit and not (fault and _status_of(error) == 401):
        return None
    variables = list(dict.fromkeys(_VARIABLE.findall(message))) or ["the variables of its provider"]
    fault = fault or no_key_in(model, " or ".join(variables))
    more = "" if is_explicit else f"; the provider's error: {redact(message, ())[:_MAX_MESSAGE]}"
    return ModelError(f"{fault}{more}", type=fault.error, status=401)


def is_fetch_error(error: Exception) -> bool:
    """Whether litellm or the provider failed to fetch an image or a document by its URL."""
    if "ImageFetchError" in {cls.__name__ for cls in type(error).__mro__}:  # litellm's own
        return True
    return _status_of(error) == 400 and _NOT_FETCHED.search(message_of(error)) is not None


def is_reasoning_error(error: Exception) -> bool:
    """Whether the provider refused the reasoning that it gets back."""
    return _status_of(error) == 400 and _REASONING.search(message_of(error)) is not None


_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})  # errors of httpx
_BROKEN = frozenset({"ReadError", "ReadTimeout", "WriteError", "RemoteProtocolError"})


def was_sent(error: BaseException | None) -> bool:
    """Whether the provider has got the request before its connection broke or timed out."""
    kinds: set[str] = set()
    while error is not None:
        kinds.add(type(error).__name__)
        error = getattr(error, "original_exception", None) or error.__cause__ or error.__context__
    return bool(kinds & _BROKEN) and not kinds & _UNSENT


def _is_transient(error: Exception, status: int | None) -> bool:
    codes = _body_field(error, "code"), _body_field(error, "type")
    if any(_NO_FUNDS.match(str(code)) for code in codes) or _is_too_large(error):
        return False
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if kinds & _TRANSIENT_TYPES or isinstance(error, TimeoutError | ConnectionError):
        return True
    if status is None:
        # An error event inside a stream has no status. It is transient unless the request is invalid.
        return "APIError" in kinds and not any(_FAULT.search(str(code)) for code in codes)
    return status in _TRANSIENT_STATUS or status >= 500


def _is_too_large(error: Exception) -> bool:
    """Whether a single request is above the limit that the error names: it will never fit."""
    sizes = _SIZES.search(_message_of(error))
    limit, wanted = (int(size.replace(",", "")) for size in sizes.groups()) if sizes else (0, 0)
    return wanted > limit


def _body_field(error: Exception, field: str) -> Any:
    body = getattr(error, "body", None)
    return body.get(field) if isinstance(body, Mapping) else None


def _status_of(error: Exception) -> int | None:
    """The HTTP status; of an error inside a stream the code of three digits in its body."""
    fields = (_body_field(error, name) for name in ("code", "status", "status_code"))
    if _body_field(error, "type") == "overloaded_error":  # Anthropic's, also inside a stream
        return 529
    for status in (getattr(error, "status_code", None), *fields):
        if isinstance(status, int | str) and _STATUS.fullmatch(str(status)):
            return int(status)
    return None


def _message_of(error: Exception) -> str:
    message = _body_field(error, "message")
    if not isinstance(message, str) or not message:
        text = message_of(error)
        message = _PREFIXES.sub("", text, count=1) or text or type(error).__name__
    return message


def _retry_after(error: Exception) -> float | None:
    """The time that the provider asks for, in seconds: retry-after-ms, else Retry-After, which is seconds or an HTTP
    date."""
    for value in filter(None, (headers.get("retry-after-ms") for headers in _headers_of(error))):
        with suppress(ValueError):
            return max(0.0, float(value) / 1000)
    for value in filter(None, (headers.get("retry-after") for headers in _headers_of(error))):
        with suppress(ValueError):
            return max(0.0, float(value.strip().removesuffix("s")))
        with suppress(ValueError):
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
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
_USER = re.compile(r"(?<=://)[^\s/@:]*:[^\s/]*@")  # user:password@
_NAMED = re.compile(r"(?<![\w.-])([\w.-]{1,60})=['\"]?([^\s&'\"#<>]+)")  # parameters of a query, or of a database URL
_SHORTEST = 4  # characters; shorter values are placeholders, and replacing them would garble the text
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
    """The keys of one model client, without repr and pickling. While it lives, the log filter redacts them."""

    __slots__ = ("__weakref__", "_values")

    def __init__(self, values: Iterable[object]) -> None:
        self._values = frozenset(value for value in values if isinstance(value, str) and len(value) >= _SHORTEST)
        _known.add(self)

    def __repr__(self) -> str:
        return "Keys(…)"

    def __reduce__(self) -> str:
        raise TypeError("keys cannot be pickled")


_known: weakref.WeakSet[Keys] = weakref.WeakSet()


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given secrets, the keys of living clients, the values of variables such as `*_API_KEY`,
    `user:password@` in URLs, the values of parameters such as `api_key=`, and text that looks like a key."""
    values = {value for name, value in os.environ.items() if is_secret(name) and len(value) >= _least(name)}
    values.update(secret for secret in secrets if len(secret) >= _SHORTEST)
    for keys in list(_known):
        values |= keys._values
    for secret in sorted(values, key=len, reverse=True):  # one may be a prefix of another
        text = text.replace(secret, "[key]")
    text = _NAMED.sub(_without_value, _USER.sub("[key]@", text))
    return _KEY_LIKE.sub("[key]", text)


def _without_value(match: re.Match[str]) -> str:
    return f"{match[1]}=[key]" if is_secret(match[1]) else match[0]


_format = logging.Formatter()


def _least(name: str) -> int:
    return _SHORTEST if name.endswith("_API_KEY") else 2 * _SHORTEST  # a password may be a common word


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        clean = redact(message)
        if clean != message:
            record.msg, record.args = clean, ()
        if record.exc_info:
            traceback = _format.formatException(record.exc_info)
            clean = redact(traceback)
            if clean != traceback:
                record.exc_text, record.exc_info = clean, None
        return True


_filter = _Filter()


def redact_logs() -> None:
    """Redact the log lines of the HTTP clients, which have URLs and headers. Repeated calls do no harm."""
    for name in _CLIENTS:
        logging.getLogger(name).addFilter(_filter)


def error_text(raised: BaseException) -> str:
    """An exception as text, without keys and passwords."""
    return redact(f"{type(raised).__name__}: {message_of(raised)}")
