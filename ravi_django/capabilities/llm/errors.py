"""Provider errors in the kernel's terms: worth a retry or not, in the provider's words, without the key."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from ravi_django.capabilities.llm.redaction import redact
from ravi_django.kernel.errors import ModelError, TransientError

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
