"""Pages: `{"next", "previous", "results"}`, `?limit=` 50 and at most 200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import DataError
from pydantic_core import to_json
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param

from ravi_django.kernel import InvalidInputError

LIMIT, MAX_LIMIT = 50, 200
MAX_BYTES = 4 * 1024 * 1024  # of a page's rows; a single row may have more


def limit_of(request: Any, default: int = LIMIT, most: int = MAX_LIMIT) -> int:
    """`?limit=`: more than `most` is `most`. Raises InvalidInputError."""
    given = request.query_params.get("limit")
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or int(given[:9]) < 1:
        raise InvalidInputError(f"limit must be a whole number from 1 to {most}, not {given!r}", field="limit")
    return min(int(given[:9]), most)


class Pages(CursorPagination):
    """Pages of a queryset by a unique column, so that rows which come meanwhile shift nothing."""

    page_size_query_param = "limit"
    page_size = LIMIT
    max_page_size = MAX_LIMIT

    def get_page_size(self, request: Any) -> int:
        return limit_of(request)

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        try:
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, DjangoValidationError, DataError, ValueError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError("cursor is none that this list gave", field="cursor") from None

    def fit(self, rows: list[Any]) -> list[Any]:
        """As many rows of the page as MAX_BYTES holds, at least one; the page's links lead to the others."""
        back = self.cursor is not None and self.cursor.reverse
        kept, size = 0, 0
        for row in reversed(rows) if back else rows:
            values = row if isinstance(row, dict) else vars(row)
            size += len(to_json({name: value for name, value in values.items() if name[0] != "_"}, fallback=str))
            if kept and size > MAX_BYTES:
                break
            kept += 1
        if kept == len(rows):
            return rows
        if back:
            self.has_previous, self.page = True, rows[-kept:]
            self.previous_position = self._get_position_from_instance(rows[-kept - 1], self.ordering)
        else:
            self.has_next, self.page = True, rows[:kept]
            self.next_position = self._get_position_from_instance(rows[kept], self.ordering)
        return list(self.page)

    def get_ordering(self, request: Any, queryset: Any, view: Any) -> tuple[str, ...]:
        return (view.ordering,)


class AddressPages:
    """Pages of what is not in the database: sorted pairs (key, item)."""

    def __init__(self, request: Any, items: list[tuple[str, Any]]) -> None:
        limit = limit_of(request)
        self._url = request.build_absolute_uri()
        after, before = (request.query_params.get(name) for name in ("after", "before"))
        left = [pair for pair in items if (not after or pair[0] > after) and (not before or pair[0] < before)]
        self.page = left[-limit:] if before and not after else left[:limit]
        self._first, self._last = (items[0][0], items[-1][0]) if items else ("", "")

    def response(self, shown: Callable[[Any], Any]) -> Response:
        """Answer the page, each item by way of `shown`."""
        keys = [key for key, _ in self.page]
        return Response(
            {
                "next": self._link("after", keys[-1]) if keys and keys[-1] < self._last else None,
                "previous": self._link("before", keys[0]) if keys and keys[0] > self._first else None,
                "results": [shown(item) for _, item in self.page],
            }
        )

    def _link(self, name: str, key: str) -> str:
        bare = remove_query_param(remove_query_param(self._url, "after"), "before")
        return str(replace_query_param(bare, name, key))


def paged(view: Any, request: Any, rows: Any, serializer: Any, prepare: Any = None) -> Response:
    """Answer one page of `rows`; `prepare` may complete the page's rows first, or give others to show."""
    pages = view.pagination_class()
    found = pages.fit(pages.paginate_queryset(rows, request, view))
    if prepare is not None:
        page, found = found, prepare(found) or found
        if len(found) == len(page):
            found = pages.fit(found)  # bodies of journal entries are in the rows by now
    response: Response = pages.get_paginated_response(serializer(found, many=True, context={"user": request.user}).data)
    return response
