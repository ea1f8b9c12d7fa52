"""Values that code returns, and that must be JSON: results of tools, the output of a run."""

from __future__ import annotations

from collections.abc import MappingView
from typing import Any

from django.db.models import QuerySet
from django.db.models.query import ModelIterable
from django.utils.functional import Promise

from ravi_django.capabilities.llm.errors import error_text
from ravi_django.kernel import InvalidInputError

MAX_ROWS = 10_000  # read from a queryset


class NotJson(InvalidInputError):
    """A returned value has no form as JSON; `raised` says why."""

    def __init__(self, value: Any, raised: Exception) -> None:
        self.kind = type(value).__name__
        super().__init__(
            f"the result of type {self.kind} is not JSON ({error_text(raised)}). Return text, numbers, lists and "
            "dicts; of a queryset return queryset.values()",
            field="result",
        )


def plain(value: Any) -> Any:
    """For `to_json`: what stands for a value that is not JSON. Raises TypeError."""
    if isinstance(value, Promise):  # a lazy translation
        return str(value)
    if isinstance(value, MappingView):
        return list(value)
    if isinstance(value, QuerySet) and not issubclass(value._iterable_class, ModelIterable):
        return list(value[:MAX_ROWS])
    raise TypeError(f"there is a value of type {type(value).__name__}")
