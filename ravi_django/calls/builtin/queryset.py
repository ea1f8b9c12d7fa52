"""Read the site's own tables: declared models and fields, for users who may view them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist
from django.db import models
from django.db.models import Q, QuerySet
from django.utils import timezone
from pydantic import Field

from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.kernel import RunContext, ToolArgumentsError, ToolRefused
from ravi_django.kernel.checks import check_whole
from ravi_django.users import permits

log = logging.getLogger("ravi.tools")

MAX_TEXT = 200  # characters of a filter's text
MAX_IN = 100  # values of an `in`
MAX_OFFSET = 10_000
_TOOL_ARGUMENTS = ("search", "order_by", "limit", "offset")  # arguments of the tool itself
_TEXT_LOOKUPS = ("iexact", "contains", "icontains", "startswith", "istartswith", "endswith", "iendswith")
_LOOKUPS = ("exact", *_TEXT_LOOKUPS, "gt", "gte", "lt", "lte", "in", "isnull", "year", "month", "day", "date")
_TYPES: dict[type[models.Field[Any, Any]], Any] = {
    models.BooleanField: bool,
    models.IntegerField: Annotated[int, Field(ge=-(2**63), lt=2**63)],
    models.DecimalField: Decimal,
    models.FloatField: Annotated[float, Field(allow_inf_nan=False)],
    models.DateTimeField: datetime,
    models.DateField: date,
    models.TimeField: time,
    models.DurationField: timedelta,
    models.UUIDField: UUID,
}
_Text = Annotated[str, Field(max_length=MAX_TEXT)]


class QuerysetTool(FunctionTool):
    """`read_<model>` for a model: rows of one Django model, with the declared fields alone.

    fields: the fields that are returned, "status" or, over a foreign key, "customer__name". filters: "status" or, with
    a lookup, "created__gte"; no others can be used. search: text fields that the argument `search` looks into.
    ordering: fields to sort by, either way. limit: rows at most. queryset: `(user) -> QuerySet` of the rows that the
    run's owner may see; by default all of the default manager's.

    The run's owner needs the model's view permission. Raises ValueError that names the faulty declaration.
    """

    def __init__(
        self,
        model: type[models.Model],
        *,
        fields: Iterable[str],
        filters: Iterable[str] = (),
        search: Iterable[str] = (),
        ordering: Iterable[str] = (),
        limit: int = 50,
        queryset: Callable[[Any], QuerySet[Any]] | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        if not (isinstance(model, type) and issubclass(model, models.Model)):
            raise ValueError(f"QuerysetTool takes a model class, not {model!r}")
        check_whole("limit", limit)
        self.model = model
        self._fields = _declared("fields", fields)
        self._filters = {path: _split(model, path) for path in _declared("filters", filters)}
        self._search = _declared("search", search)
        self._ordering = _declared("ordering", ordering)
        self._limit = limit
        self._queryset = queryset
        self._check()
        meta = model._meta
        self._needed = f"{meta.app_label}.view_{meta.model_name}"
        super().__init__(
            _with_signature(self._read, self._parameters()),
            name=name or f"read_{meta.model_name}",
            description=description or self._default_description(),
            permission=self._needed,
        )

    def _check(self) -> None:
        if not self._fields:
            raise ValueError(f"{self.model.__name__}: fields names at least one")
        for option, paths in (("fields", self._fields), ("ordering", self._ordering), ("search", self._search)):
            for path in paths:
                field = _resolve(self.model, path, option)
                if isinstance(field, models.BinaryField):
                    raise ValueError(f"{option} has {path!r}: bytes cannot be returned")
                if option == "search" and not isinstance(field, models.CharField | models.TextField):
                    raise ValueError(f"search has {path!r}, which is no text")
        for path in self._filters:
            if path in _TOOL_ARGUMENTS:
                raise ValueError(f"filters has {path!r}, an argument of the tool itself; write '{path}__exact'")

    def _default_description(self) -> str:
        names = ", ".join(self._fields)
        return f"Read {self.model._meta.verbose_name_plural}: rows with {names}, at most {self._limit} at once."

    def _parameters(self) -> dict[str, Any]:
        """Argument → annotation; all are optional."""
        parameters: dict[str, Any] = {path: _type(field, lookup) for path, (field, lookup) in self._filters.items()}
        if self._search:
            parameters["search"] = Annotated[_Text, Field(description=f"text to be found in {', '.join(self._search)}")]
        if self._ordering:
            choices = tuple(sign + path for path in self._ordering for sign in ("", "-"))
            parameters["order_by"] = Annotated[Literal[choices], Field(description="- in front is downwards")]
        parameters["limit"] = Annotated[int, Field(ge=1, le=self._limit, description="rows at most")]
        parameters["offset"] = Annotated[int, Field(ge=0, le=MAX_OFFSET, description="rows to leave out first")]
        return parameters

    def _read(self, ctx: RunContext, **arguments: Any) -> dict[str, Any]:
        asked = {name: _aware(value) for name, value in arguments.items() if value is not None}
        limit, offset = asked.get("limit", self._limit), asked.get("offset", 0)
        _refuse_nul(asked)
        user = self._owner(ctx)
        try:
            rows = self._rows(user)
            for path, (_, lookup) in self._filters.items():
                if path in asked:
                    rows = rows.filter(**{path if lookup else f"{path}__exact": asked[path]})
            if text := asked.get("search"):
                rows = rows.filter(reduce(or_, (Q(**{f"{path}__icontains": text}) for path in self._search)))
            if order := asked.get("order_by") or (None if rows.ordered else "pk"):
                rows = rows.order_by(order, "pk")
            records = list(rows.values(*self._fields)[offset : offset + limit + 1])
        except Exception:
            # Errors of the database or the site's code may name undeclared fields.
            log.exception("%s could not read", self.name, extra={"action": "tool.failed"})
            raise ToolRefused(f"{self.model._meta.verbose_name_plural} cannot be read with these arguments") from None
        return {"rows": records[:limit], "more": len(records) > limit}

    def _owner(self, ctx: RunContext) -> Any:
        user = get_user_model().objects.filter(pk=ctx.user_id).first() if ctx.user_id else None
        if user is None or not permits(user, self._needed):
            raise ToolRefused(f"not permitted: {self.name} needs the permission {self._needed}")
        return user

    def _rows(self, user: Any) -> QuerySet[Any]:
        if self._queryset is None:
            return self.model._default_manager.all()
        rows = self._queryset(user)
        if not isinstance(rows, QuerySet) or rows.model is not self.model:
            raise TypeError(f"queryset gave {type(rows).__name__}, not a queryset of {self.model.__name__}")
        return rows


def _aware(value: Any) -> Any:
    """A time without a zone is in the site's zone."""
    is_naive = isinstance(value, datetime) and settings.USE_TZ and timezone.is_naive(value)
    return timezone.make_aware(value) if is_naive else value


def _refuse_nul(asked: dict[str, Any]) -> None:
    for name, value in asked.items():
        if any("\0" in text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
            raise ToolArgumentsError(f"argument {name!r} has a NUL character in it", field=name)


def _declared(option: str, paths: Iterable[str]) -> list[str]:
    if isinstance(paths, str):
        raise ValueError(f"{option} is a list of names, not {paths!r}; write [{paths!r}]")
    names = list(dict.fromkeys(paths))
    if wrong := next((path for path in names if not isinstance(path, str) or path.startswith("-")), None):
        raise ValueError(f"{option} has {wrong!r}; name fields, without a sign")
    return names


def _resolve(model: type[models.Model], path: str, option: str) -> models.Field[Any, Any]:
    """The field at the end of a path over foreign keys."""
    here = model
    *over, last = path.split("__")
    for name in over:
        field = _field(here, name, path, option)
        if not isinstance(field, models.ForeignKey) or not isinstance(field.related_model, type):
            raise ValueError(f"{option} has {path!r}: {name!r} is no foreign key of {here.__name__}")
        here = field.related_model
    return _field(here, last, path, option)


def _field(model: type[models.Model], name: str, path: str, option: str) -> models.Field[Any, Any]:
    try:
        field = model._meta.pk if name == "pk" else model._meta.get_field(name)
    except FieldDoesNotExist:
        raise ValueError(f"{option} has {path!r}, but {model.__name__} has no field {name!r}") from None
    if not isinstance(field, models.Field) or not field.concrete or field.many_to_many:
        raise ValueError(f"{option} has {path!r}, but {name!r} is no single value of a {model.__name__}")
    return field


def _split(model: type[models.Model], path: str) -> tuple[models.Field[Any, Any], str]:
    """A filter's field and lookup; the lookup is empty for equality."""
    field_path, _, lookup = path.rpartition("__")
    if field_path and lookup in _LOOKUPS:
        return _resolve(model, field_path, "filters"), lookup
    return _resolve(model, path, "filters"), ""


def _type(field: models.Field[Any, Any], lookup: str) -> Any:
    """The type of a filter's argument, as the model sees it."""
    if lookup == "isnull":
        return bool
    if lookup in _TEXT_LOOKUPS:
        return _Text
    if lookup in ("year", "month", "day"):
        return Annotated[int, Field(ge=1, le=9999)]
    if lookup == "date":
        return date
    value = _value_type(field)
    return Annotated[list[value], Field(max_length=MAX_IN)] if lookup == "in" else value  # type: ignore[valid-type]


def _value_type(field: models.Field[Any, Any]) -> Any:
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    choices = tuple(value for value, _ in field.flatchoices)
    if choices and all(isinstance(value, str | int) and not isinstance(value, bool) for value in choices):
        return Literal[choices]
    return next((kind for base, kind in _TYPES.items() if isinstance(field, base)), _Text)


def _with_signature(read: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
    """The function with these arguments as its signature, all optional."""

    def read_rows(ctx: RunContext, **arguments: Any) -> Any:
        return read(ctx, **arguments)

    keyword = inspect.Parameter.KEYWORD_ONLY
    named = [inspect.Parameter(name, keyword, default=None, annotation=kind | None) for name, kind in arguments.items()]
    context = inspect.Parameter("ctx", keyword, annotation=RunContext)
    setattr(read_rows, "__signature__", inspect.Signature([context, *named]))  # noqa: B010 - mypy refuses the assignment
    return read_rows
