"""Lists: pages, and filters as query parameters. An answer has all their faults; unknown parameters are ignored.

A page is `{"next", "previous", "results"}`, `?limit=` 50 and at most 200.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import add
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError, ValidationError as DjangoValidationError
from django.db import DataError
from django.db.models import Exists, OuterRef, Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce
from django.db.models.lookups import Exact
from django.utils.dateparse import parse_date, parse_datetime
from django_filters import FilterSet, filters
from django_filters.rest_framework import DjangoFilterBackend
from pydantic_core import to_json
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.utils.urls import remove_query_param, replace_query_param

from ravi_django.db import Bytes
from ravi_django.kernel import AgentId, ForbiddenError, InvalidInputError
from ravi_django.live.streams import hidden
from ravi_django.models import HumanRequest, Run, Session, Status, first_id_of
from ravi_django.users import has

LIMIT, MAX_LIMIT = 50, 200
MAX_BYTES = 4 * 1024 * 1024  # of a page; a single row may have more


def limit_of(request: Any, default: int = LIMIT, most: int = MAX_LIMIT) -> int:
    """`?limit=`: more than `most` is `most`. Raises InvalidInputError."""
    text = request.query_params.get("limit")
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text[:9]) < 1:
        raise InvalidInputError(f"limit must be a whole number from 1 to {most}, not {text!r}", field="limit")
    return min(int(text[:9]), most)


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
        count = _fitting(reversed(sizes) if back else sizes)
        if count == len(rows):
            return rows
        if back:
            self.has_previous, self.page = True, rows[-count:]
            self.previous_position = self._get_position_from_instance(rows[-count - 1], self.ordering)
        else:
            self.has_next, self.page = True, rows[:count]
            self.next_position = self._get_position_from_instance(rows[count], self.ordering)
        return list(self.page)

    def cut(self, rows: list[Any], parts: list[Any]) -> list[Any]:
        """The JSON of the rows that fit into a page; `parts` has that of each row, a list where it is several."""
        fitting = self.fit(rows, [len(to_json(part)) for part in parts])
        parts = parts[: len(fitting)] if fitting[:1] == rows[:1] else parts[-len(fitting) :]
        return [body for part in parts for body in (part if isinstance(part, list) else [part])]

    def get_ordering(self, request: Any, queryset: Any, view: Any) -> tuple[str, ...]:
        return tuple(self.ordering)


def _fitting(sizes: Iterable[int]) -> int:
    """How many of these sizes fit into MAX_BYTES with the page's links, at least one."""
    count, total = 0, MAX_BYTES // 64
    for size in sizes:
        total += size
        if count and total > MAX_BYTES:
            break
        count += 1
    return count


class _Weighed:
    """A queryset that reads at most MAX_BYTES: the database first counts the bytes of these columns."""

    def __init__(self, rows: Any, columns: Sequence[str], pages: Pages) -> None:
        self._rows, self._columns, self._pages = rows, columns, pages

    def order_by(self, *names: str) -> _Weighed:
        return _Weighed(self._rows.order_by(*names), self._columns, self._pages)

    def filter(self, *conditions: Any, **fields: Any) -> _Weighed:
        return _Weighed(self._rows.filter(*conditions, **fields), self._columns, self._pages)

    def __getitem__(self, part: slice) -> Any:
        """The rows of a page and the next row, if any."""
        lengths = [Coalesce(Bytes(name), 0) for name in self._columns]
        count = _fitting(self._rows.values_list(reduce(add, lengths), flat=True)[part])
        self._pages.page_size = min(self._pages.page_size, count)
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
        count = _fitting(reversed(sizes) if self._is_back else sizes)
        self.page = rows[len(rows) - count :] if self._is_back else rows[:count]
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


LONGEST = 200  # characters of a text to look for
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}\Z")  # of a key of `metadata`
MOST_NAMES = 5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL = "all"
FLAGS = ("true", "false", "True", "False")


class Backend(DjangoFilterBackend):
    """Django-filter without its templates: `django_filters` need not be an installed app."""

    def filter_queryset(self, request: Any, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        """django-filter's own translation of faults would interpret a `%` of the client as a format."""
        filterset: Any = self.get_filterset(request, queryset, view)
        if not filterset.is_valid():
            errors = {
                name: [ErrorDetail(fault["message"], fault["code"] or "invalid") for fault in of]
                for name, of in filterset.errors.get_json_data().items()
            }
            raise serializers.ValidationError(errors)
        return filterset.qs  # type: ignore[no-any-return]


class AddressField(forms.CharField):
    def __init__(self, *, kind: Any, **options: Any) -> None:
        super().__init__(**options)
        self.kind = kind

    def clean(self, value: Any) -> Any:
        try:
            return (text := super().clean(value)) and str(self.kind.parse(text))
        except InvalidInputError as error:
            raise ValidationError(str(error)) from None


class AddressFilter(filters.CharFilter):
    """The address of an agent, or of another `kind`."""

    field_class = AddressField

    def __init__(self, *args: Any, kind: Any = AgentId, **options: Any) -> None:
        super().__init__(*args, kind=kind, **options)


def moment_of(text: str, name: str) -> datetime:
    """A date or a time in ISO 8601, in UTC if it has no offset. Raises InvalidInputError."""
    try:
        day = parse_date(text)
        moment = datetime(day.year, day.month, day.day) if day else parse_datetime(text)
        if moment is not None:
            moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
            first_id_of(moment)  # raises for a time that no id can have
            return moment
    except (ValueError, OverflowError):
        pass
    raise InvalidInputError(f"{name} must be a date or a time in ISO 8601, not {text[:LONGEST]!r}", field=name)


class MomentField(forms.CharField):
    def clean(self, value: Any) -> datetime | None:
        text = super().clean(value)
        try:
            return moment_of(text, "it") if text else None
        except InvalidInputError as error:
            raise ValidationError(str(error)) from None


class MomentFilter(filters.CharFilter):
    field_class = MomentField


class MadeFilter(MomentFilter):
    """By the time of a row's creation, through the index of the ids, which begin with it."""

    def __init__(self, lookup: str, help_text: str) -> None:
        super().__init__(field_name="id", lookup_expr=lookup, help_text=help_text)

    def filter(self, qs: QuerySet[Any], value: Any) -> QuerySet[Any]:
        return super().filter(qs, value and first_id_of(value))


class _Named(forms.Widget):
    def value_from_datadict(self, data: Any, files: Any, name: str) -> dict[str, str]:
        prefix = name.partition(".")[0] + "."
        return {key.removeprefix(prefix): data[key] for key in data if key.startswith(prefix)}


class MetadataField(forms.Field):
    widget = _Named

    def clean(self, value: dict[str, str]) -> dict[str, str]:
        if len(value) > MOST_NAMES:
            raise ValidationError(f"at most {MOST_NAMES} names of metadata in one call, not {len(value)}")
        for name, text in value.items():
            if not NAME.match(name):
                raise ValidationError(f"{name[:100]!r} is not a name of at most 100 letters, digits, - and _")
            if len(text) > LONGEST or "\0" in text:
                raise ValidationError(f"the value of {name} must be at most {LONGEST} characters, without NUL")
        return value


class MetadataFilter(filters.CharFilter):
    """`metadata.NAME=value`, for any name: the value in a run's metadata, as text."""

    field_class = MetadataField  # type: ignore[assignment]

    def filter(self, qs: QuerySet[Any], value: dict[str, str]) -> QuerySet[Any]:
        for name, text in value.items():
            qs = qs.filter(Exact(Cast(KeyTextTransform(name, "metadata"), TextField()), text))
        return qs


def choice(name: str, values: Any, **options: Any) -> filters.ChoiceFilter:
    known = {"invalid_choice": f"{name} must be one of {', '.join(values)}"}
    return filters.ChoiceFilter(choices=[(value, value) for value in values], error_messages=known, **options)


class Form(forms.Form):
    def clean(self) -> None:
        """An empty value is an error, except for `search`: browsers send empty search boxes."""
        for name in (name for name in self.fields if name != "search" and name in self.data):
            parts = self.data[name].split(",") if name == "ordering" else [self.data[name]]
            if not all(map(str.strip, parts)):
                self.add_error(name, "must not be empty")
            elif isinstance(self.fields[name], forms.NullBooleanField) and self.data[name] not in FLAGS:
                self.add_error(name, "must be true or false")  # Django takes another text for no value


class Rows(FilterSet):
    """The filters of all rows of users."""

    agent = AddressFilter(help_text="Only those of this agent, type/key.")
    created_after = MadeFilter("gte", "Created at this time or later: ISO 8601, a date or a time.")
    created_before = MadeFilter("lt", "Created before this time.")
    owner = filters.CharFilter(
        method="of_owner", max_length=254, help_text="Only those of the user with this user name. For staff."
    )
    ordering = filters.OrderingFilter(fields={"id": "created_at"})

    request: Any

    class Meta:
        form = Form

    def of_owner(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        if not (has(self.request.user, "is_staff") or has(self.request.user, "is_superuser")):
            raise ForbiddenError("the filter owner is for staff; leave it out")
        return rows.filter(**{f"owner__{get_user_model().USERNAME_FIELD}": value})


def search(where: str) -> filters.CharFilter:
    return filters.CharFilter(
        method="with_text", max_length=LONGEST, help_text=f"Only those with this text in {where}."
    )


class RunFilters(Rows):
    status = choice("status", Status.values)
    session = filters.UUIDFilter(help_text="Only runs of this session.")
    search = search("the agent's address or the session's title")

    class Meta(Rows.Meta):
        model = Run
        fields: list[str] = []

    @classmethod
    def get_filters(cls) -> Any:
        help_text = "Only runs with this value in their metadata, for any NAME: `metadata.customer=acme`."
        return {**super().get_filters(), "metadata.NAME": MetadataFilter(required=False, help_text=help_text)}

    def with_text(self, rows: QuerySet[Run], name: str, value: str) -> QuerySet[Run]:
        return rows.filter(Q(agent__icontains=value) | Q(session__title__icontains=value))


class SessionFilters(Rows):
    search = search("the title")
    ordering = filters.OrderingFilter(fields={"id": "created_at", "updated_at": "updated_at"})
    mine = filters.BooleanFilter(method="of_reader", help_text="Only the reader's own. A superuser sees those of all.")
    name = filters.CharFilter(max_length=LONGEST, help_text="Only conversations with this name.")
    newest_fork = filters.BooleanFilter(
        method="newest_of_family",
        help_text="Of those that were forked from each other only the last one spoken in; `true` without `name`.",
    )

    class Meta(Rows.Meta):
        model = Session
        fields: list[str] = []

    def with_text(self, rows: QuerySet[Session], name: str, value: str) -> QuerySet[Session]:
        return rows.filter(title__icontains=value)

    def of_reader(self, rows: QuerySet[Session], name: str, value: bool) -> QuerySet[Session]:
        return rows.filter(owner=self.request.user) if value else rows

    def filter_queryset(self, queryset: QuerySet[Session]) -> QuerySet[Session]:
        chosen = self.form.cleaned_data
        if chosen["newest_fork"] is None:
            chosen["newest_fork"] = not chosen["name"]
        return super().filter_queryset(queryset)

    def newest_of_family(self, rows: QuerySet[Session], name: str, value: bool) -> QuerySet[Session]:
        if not value:
            return rows
        newer = Q(updated_at__gt=OuterRef("updated_at")) | Q(updated_at=OuterRef("updated_at"), id__gt=OuterRef("id"))
        family = Session.objects.filter(erasure=None).of_family(Coalesce(OuterRef("family"), OuterRef("id")))
        return rows.filter(~Exists(family.filter(newer)))


class RequestFilters(Rows):
    agent = AddressFilter("run__agent", help_text="Only requests of this agent, type/key.")
    status = choice("status", [*HumanRequest.Status.values, ALL], method="with_status")
    kind = choice("kind", HumanRequest.Kind.values)
    tool = filters.CharFilter(max_length=LONGEST, help_text="Only those about calls of this tool, or asked by it.")
    run = filters.UUIDFilter("run_id", help_text="Only requests of this run.")
    search = search("the question or the tool's name")

    class Meta(Rows.Meta):
        model = HumanRequest
        fields: list[str] = []

    def with_status(self, rows: QuerySet[HumanRequest], name: str, value: str) -> QuerySet[HumanRequest]:
        return rows if value == ALL else rows.filter(status=value)

    def with_text(self, rows: QuerySet[HumanRequest], name: str, value: str) -> QuerySet[HumanRequest]:
        """Does not search text that is hidden from the reader: the result would reveal it."""
        text = Q(text__icontains=value)
        if not hidden.sees(self.request.user):
            text &= ~Q(details__hidden=True)
        return rows.filter(text | Q(tool__icontains=value))
