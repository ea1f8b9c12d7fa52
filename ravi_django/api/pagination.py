"""Pages: `{"next", "previous", "results"}`, `?limit=` 50 and at most 200."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import DataError
from django.db.models.functions import Coalesce
from pydantic_core import to_json
from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.utils.urls import remove_query_param, replace_query_param

from ravi_django.db import Bytes
from ravi_django.kernel import InvalidInputError

LIMIT, MAX_LIMIT = 50, 200
MAX_BYTES = 4 * 1024 * 1024  # of a page; a single row may have more


def limit_of(request: Any, default: int = LIMIT, most: int = MAX_LIMIT) -> int:
    """`?limit=`: more than `most` is `most`. Raises InvalidInputError."""
    given = request.query_params.get("limit")
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or int(given[:9]) < 1:
        raise InvalidInputError(f"limit must be a whole number from 1 to {most}, not {given!r}", field="limit")
    return min(int(given[:9]), most)


class Pages(CursorPagination):
    """Pages of a queryset by a unique column, so that new rows do not shift them. `?cursor=end` is the last one; its
    `previous` leads to the others."""

    page_size_query_param = "limit"
    page_size = LIMIT
    max_page_size = MAX_LIMIT

    def get_page_size(self, request: Any) -> int:
        return limit_of(request)

    def decode_cursor(self, request: Any) -> Any:
        is_end = request.query_params.get(self.cursor_query_param) == "end"
        return Cursor(offset=0, reverse=True, position=None) if is_end else super().decode_cursor(request)

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        self.ordering = queryset.query.order_by or (view.ordering,)
        try:
            rows: Any = _Weighed(queryset, view.weighs, self) if view.weighs else queryset
            return super().paginate_queryset(rows, request, view)
        except (NotFound, DjangoValidationError, DataError, ValueError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError("cursor is not one of this list's cursors", field="cursor") from None

    def fit(self, rows: list[Any], sizes: list[int]) -> list[Any]:
        """The rows of the page that fit into MAX_BYTES, at least one; the page's links lead to the others."""
        back = self.cursor is not None and self.cursor.reverse
        kept = _fitting(reversed(sizes) if back else sizes)
        if kept == len(rows):
            return rows
        if back:
            self.has_previous, self.page = True, rows[-kept:]
            self.previous_position = self._get_position_from_instance(rows[-kept - 1], self.ordering)
        else:
            self.has_next, self.page = True, rows[:kept]
            self.next_position = self._get_position_from_instance(rows[kept], self.ordering)
        return list(self.page)

    def cut(self, rows: list[Any], parts: list[Any]) -> list[Any]:
        """The JSON of the rows that fit into a page; `parts` has that of each row, a list where it is several."""
        kept = self.fit(rows, [len(to_json(part)) for part in parts])
        parts = parts[: len(kept)] if kept[:1] == rows[:1] else parts[-len(kept) :]
        return [body for part in parts for body in (part if isinstance(part, list) else [part])]

    def get_ordering(self, request: Any, queryset: Any, view: Any) -> tuple[str, ...]:
        return tuple(self.ordering)


def _fitting(sizes: Iterable[int]) -> int:
    """How many of these sizes fit into MAX_BYTES with the page's links, at least one."""
    kept, total = 0, MAX_BYTES // 64
    for size in sizes:
        total += size
        if kept and total > MAX_BYTES:
            break
        kept += 1
    return kept


class _Weighed:
    """A queryset that reads at most MAX_BYTES: the database first counts the bytes of these columns."""

    def __init__(self, rows: Any, columns: Sequence[str], pages: Pages) -> None:
        self._rows, self._columns, self._pages = rows, columns, pages

    def order_by(self, *names: str) -> _Weighed:
        return _Weighed(self._rows.order_by(*names), self._columns, self._pages)

    def filter(self, *given: Any, **fields: Any) -> _Weighed:
        return _Weighed(self._rows.filter(*given, **fields), self._columns, self._pages)

    def __getitem__(self, part: slice) -> Any:
        """The rows of a page and the next row, if any."""
        lengths = [Coalesce(Bytes(name), 0) for name in self._columns]
        kept = _fitting(self._rows.values_list(reduce(add, lengths), flat=True)[part])
        self._pages.page_size = min(self._pages.page_size, kept)
        return self._rows[part.start : part.start + self._pages.page_size + 1]


class AddressPages(Pages):
    """Pages of sorted addresses, which need not be in the database."""

    def paginate_queryset(self, addresses: Any, request: Any, view: Any = None) -> Any:
        limit = limit_of(request)
        self._url, self._all = request.build_absolute_uri(), addresses
        after, before = (request.query_params.get(name) for name in ("after", "before"))
        left = [name for name in addresses if (not after or name > after) and (not before or name < before)]
        self._is_back = bool(before and not after)
        self.page = left[-limit:] if self._is_back else left[:limit]
        return self.page

    def fit(self, rows: list[Any], sizes: list[int]) -> list[Any]:
        kept = _fitting(reversed(sizes) if self._is_back else sizes)
        self.page = rows[len(rows) - kept :] if self._is_back else rows[:kept]
        return list(self.page)

    def get_next_link(self) -> str | None:
        return self._link("after", self.page[-1]) if self.page and self.page[-1] < self._all[-1] else None

    def get_previous_link(self) -> str | None:
        return self._link("before", self.page[0]) if self.page and self.page[0] > self._all[0] else None

    def get_schema_operation_parameters(self, view: Any) -> list[Any]:
        return []

    def _link(self, name: str, address: str) -> str:
        bare = remove_query_param(remove_query_param(self._url, "after"), "before")
        return str(replace_query_param(bare, name, address))
