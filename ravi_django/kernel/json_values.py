"""JSON values: read a text within bounds, and check that a value comes back from a database and from a client.

A value that comes from a person, a program or the site's code is refused if no row can hold it. What a model, a tool or
another server sent is replaced instead (`storable`), so that the rest of it is kept.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic_core import from_json, to_json

from ravi_django.kernel.errors import InputTooLargeError, InvalidInputError

# A small object takes 20 times the bytes of its text, a number or a short key 11 times: dense texts have fewer.
MAX_OPENINGS = 100_000  # objects and lists, counted by `{` and `[`
MAX_COMMAS = 1_000_000  # of a long text
DENSE_COMMAS = 300_000  # of any text, more than an input has bytes; of a long one at most one for each `BYTES_A_COMMA`
BYTES_A_COMMA = 32
MAX_DEPTH = 200  # pydantic's own: it stops reading there
MAX_DIGITS = 4300  # Python reads no longer whole number

_TOO_LONG = 10**MAX_DIGITS
_HALF = re.compile("[\ud800-\udfff]")
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)


def read_json(text: bytes | str, field: str = "body", *, texts: bool = True) -> Any:
    """The value of a JSON text. Its size is the caller's to bound. The costs are counted before it is parsed.

    Raises InputTooLargeError for too many elements, InvalidInputError with the field's path for a value that cannot be
    stored (without `texts` only for its numbers), and any other ValueError for a text that is not JSON.
    """
    check_cost(text, field)
    value = parsed(text, allow_inf_nan=False)
    check_storable(value, texts=texts)
    return value


def parsed(text: bytes | str, *, allow_inf_nan: bool = True) -> Any:
    """Raises InvalidInputError for too many levels, ValueError for a text that is not JSON."""
    try:
        return from_json(text, allow_inf_nan=allow_inf_nan)
    except ValueError as error:
        if "recursion" in str(error):
            raise InvalidInputError(f"the value is nested more than {MAX_DEPTH} levels deep; use fewer") from None
        raise


def check_cost(text: bytes | str, field: str = "body") -> None:
    """Raises InputTooLargeError for a JSON text with too many elements."""
    if isinstance(text, str):
        openings, commas = text.count("{") + text.count("["), text.count(",")
    else:
        openings, commas = text.count(b"{") + text.count(b"["), text.count(b",")
    if openings > MAX_OPENINGS:
        raise InputTooLargeError(f"{field} has {openings} objects and lists, the limit is {MAX_OPENINGS}", field=field)
    most = min(MAX_COMMAS, max(DENSE_COMMAS, len(text) // BYTES_A_COMMA))
    if commas > most:
        raise InputTooLargeError(f"{field} has {commas} commas, the limit for its size is {most}", field=field)


def check_storable(value: Any, field: str = "", *, texts: bool = True) -> None:
    """Raises InvalidInputError, with the path of the fault below `field`, for a JSON value that no row can hold.
    Without `texts` only for its numbers."""
    reason = _fault(value, texts)
    if reason is None:
        return
    path = [field] if field else []
    while isinstance(value, dict | list | tuple):
        names = value if isinstance(value, dict) else range(len(value))
        name = next(name for name in names if _fault(name, texts) or _fault(value[name], texts))
        path.append(storable(name.replace("\0", "")) if isinstance(name, str) else str(name))
        if _fault(name, texts):
            break
        value = value[name]
    raise InvalidInputError(reason, field=".".join(path) or None)


def _fault(value: Any, texts: bool) -> str | None:
    """Why no row can hold the value; None if one can. Copies nothing."""
    left: list[Any] = [(value,)]
    while left:
        part = left.pop()
        for items in (part, part.values()) if isinstance(part, dict) else (part,):
            for item in items:
                if isinstance(item, dict | list | tuple):
                    left.append(item)
                elif reason := _text_fault(item) if isinstance(item, str) and texts else _number_fault(item):
                    return reason
    return None


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return "a NUL character cannot be stored; leave it out"
    if not text.isascii() and _HALF.search(text):
        return "half of a surrogate pair is not a character; leave it out"
    return None


def _number_fault(number: Any) -> str | None:
    if isinstance(number, float) and not math.isfinite(number):
        return "the number is too large to be stored, or it is none; send a text or null"
    if isinstance(number, int) and not -_TOO_LONG < number < _TOO_LONG:
        return f"the number has more than {MAX_DIGITS} digits; send it as a text"
    return None


def is_suspect(body: bytes) -> bool:
    """Whether it may have a value that no row can hold: NUL, a number that JSON does not have, or too many digits."""
    if b"\\u0000" in body or b"NaN" in body or b"Infinity" in body:
        return True
    return len(body) > MAX_DIGITS and _LONG_NUMBER in body.translate(_DIGITS)


def is_storable(value: Any) -> bool:
    """Whether `storable` would change nothing. Much cheaper than calling it."""
    try:
        body = to_json(value, fallback=str)
    except ValueError:
        return False
    return not is_suspect(body)


def storable(value: Any) -> Any:
    """A JSON value without NUL characters, halves of surrogate pairs, NaN, infinity and whole numbers that Python does
    not read back: no row can hold them."""
    if isinstance(value, str):
        text = value.replace("\0", "\ufffd")
        return text if text.isascii() else text.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {storable(key): storable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # as pydantic has it in JSON
    if isinstance(value, int) and not -_TOO_LONG < value < _TOO_LONG:
        return to_json(value).decode()
    return value


# Each is linear: an answer may be long. A text, or a comma before an end; the marks of Markdown and of chat templates.
_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+"?)|,(?=\s{0,99}[}\]])', re.DOTALL)
_MARKS = re.compile(r"\A```\w*|(?:(?:```|<[^<>{}\"]{0,60}>)\s{0,9}){1,5}\Z")
_BRACKET, _SPACE = re.compile(r"[{\[]"), re.compile(r"\s*")
_MOST_TRIES, _MOST_PYTHON = 100, 100_000  # brackets that may begin a value; letters that Python reads


def written(text: str) -> Any:
    """The value of a JSON text that a model wrote: also with line breaks in texts, commas before an end, Python's
    quotes, marks around it, encoded twice, repeated, or after an empty object. Raises ValueError for another text."""
    check_cost(text)
    bare = _MARKS.sub("", text.strip())
    for form in (text, bare, _COMMA.sub(r"\1", bare)):
        with suppress(ValueError, RecursionError):
            *before, value = _sequence(form.strip())
            if all(one in ({}, value) for one in before):
                break
    else:
        try:
            value = json.loads(
                json.dumps(ast.literal_eval(bare.strip() if len(bare) <= _MOST_PYTHON else ""), allow_nan=False)
            )
        except (SyntaxError, TypeError, RecursionError, MemoryError):
            raise ValueError("the text is not JSON") from None
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        value = json.loads(value)
    check_storable(value, texts=False)
    return value


def _sequence(text: str) -> Iterator[Any]:
    at = 0
    while at < len(text):
        value, at = _decoder.raw_decode(text, at)
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        yield value


def values_between(text: str) -> Iterator[Any]:
    """The objects and lists of JSON between the words of a text."""
    at = 0
    for _ in range(_MOST_TRIES):
        if (begin := _BRACKET.search(text, at)) is None:
            return
        at = begin.end()
        with suppress(ValueError, RecursionError):
            value, at = _decoder.raw_decode(text, begin.start())
            check_storable(value, texts=False)
            yield value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse)


def check_json(field: str, value: Any, most: float = math.inf) -> Any:
    """The value as it is read back from JSON. Raises InputTooLargeError above `most` bytes, and InvalidInputError for a
    value that is not JSON or that is not read back from a row."""
    try:
        body = to_json(value)
        if len(body) <= most:
            held = parsed(body)
            check_storable(held, field)
            return held
    except InvalidInputError as error:
        raise InvalidInputError(f"{error.field or field}: {error}", field=field) from None
    except ValueError as error:
        raise InvalidInputError(f"{field} is not JSON: {error}", field=field) from None
    raise InputTooLargeError(f"{field} has {len(body)} bytes, the limit is {most}", field=field)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str).encode


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8; values that are not JSON become text."""
    return _encode(value).encode(errors="surrogatepass")


def digest_of(value: Any) -> str:
    """128 bits of SHA-256 over the canonical form, as hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:32]
