"""Request bodies: one JSON object of limited size, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from ravi_django.conf import conf
from ravi_django.kernel import InputTooLargeError, InvalidInputError


def max_body() -> int:
    """Bytes. JSON may encode a character of one byte as six (`\\u0061`); `submit` measures the input itself."""
    return 6 * int(conf.MAX_INPUT_BYTES) + 64 * 1024


class StrictJSONParser(BaseParser):
    """Refuses values that JSON or the database cannot represent: NaN, infinities, NUL, half surrogates. The body must
    be an object. DRF's own parser reads a body of any size."""

    media_type = "application/json"
    times = 1  # of `max_body`

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        limit = self.times * max_body()
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise InputTooLargeError(f"the body has more than {limit} bytes")
        try:
            found = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise ParseError(f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ParseError("the body must be a JSON object")
        for field, value in found.items():
            _check(field, field)
            _check(value, field)
        return found


def _check(value: Any, field: str) -> None:
    """Recursive; the parser has bounded the depth."""
    match value:
        case str() if "\0" in value:
            raise InvalidInputError("a NUL character cannot be stored; leave it out", field=field.replace("\0", ""))
        case float() if not math.isfinite(value):  # 1e999 is read as infinity
            raise InvalidInputError("a number is too big", field=field)
        case list():
            for item in value:
                _check(item, field)
        case dict():
            for key, item in value.items():
                _check(key, field)
                _check(item, field)
