"""Tables of cases inside one test: a failure names its case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django.kernel import InvalidInputError


@contextmanager
def case(*values: Any) -> Iterator[None]:
    """Run one row of a table; note its values on what it raises."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(repr, values))[:500]}")
        raise


@contextmanager
def refused(field: str, words: str = "") -> Iterator[None]:
    """The input is refused: the error names `field`, and says `words`."""
    with pytest.raises(InvalidInputError) as caught:
        yield
    assert caught.value.field == field
    assert words in str(caught.value)


def sizes(in_gate: Any, full: Any) -> list[Any]:
    """Of one test's parameters: what `make test` and `make test-all` take, and what `make test-crash` takes."""
    values = [one if isinstance(one, tuple) else (one,) for one in (in_gate, full)]
    return [pytest.param(*values[0], marks=pytest.mark.small), pytest.param(*values[1], marks=pytest.mark.crash)]


def queries_of(call: Callable[[], Any]) -> int:
    """How many queries a call makes."""
    with CaptureQueriesContext(connection) as queries:
        call()
    return len(queries)
