"""Request bodies: one JSON object of limited size, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from ravi_django.conf import conf
from ravi_django.kernel import InvalidInputError
from ravi_django.kernel.json_values import read_json


def max_body() -> int:
    """Bytes. JSON may encode a character of one byte as six (`\\u0061`); `submit` measures the input itself."""
    return 6 * int(conf.MAX_INPUT_BYTES) + 64 * 1024


class StrictJSONParser(BaseParser):
    """Refuses what `read_json` refuses. The body must be an object. `ApiView` has checked its size."""

    media_type = "application/json"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        body = stream.read()
        try:
            found = read_json(body)
        except InvalidInputError as error:
            if error.field is None:  # of the text, not of a value in it
                raise ParseError(str(error)) from None
            error.field = (error.field or "").partition(".")[0] or None
            raise
        except ValueError as error:
            raise ParseError(f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ParseError("the body must be a JSON object")
        return found
