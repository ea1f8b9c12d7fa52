from collections.abc import Callable
from typing import Any

import pytest

from ravi_django.agents.docstring import read_docstring


def with_doc(doc: str | None) -> Callable[..., Any]:
    def function() -> None: ...

    function.__doc__ = doc
    return function


GOOGLE = """Send an invoice.

    Goes out at once.

    Args:
        customer (str): who gets it,
            by name
        amount: in dollars: gross
        **rest: more

    Returns:
        its number

    Note: cannot be called back.
    """

REST = """Send an invoice.

    Goes out at once.

    :param customer: who gets it,
        by name
    :param float amount: in dollars: gross
    :returns: its number
    :rtype: int
    """


def test_google_style() -> None:
    docstring = read_docstring(with_doc(GOOGLE))

    assert docstring.parameters == {
        "customer": "who gets it, by name",
        "amount": "in dollars: gross",
        "rest": "more",
    }
    assert docstring.description == "Send an invoice.\n\nGoes out at once.\n\nNote: cannot be called back."


def test_rest_style() -> None:
    docstring = read_docstring(with_doc(REST))

    assert docstring.parameters == {"customer": "who gets it, by name", "amount": "in dollars: gross"}
    assert docstring.description == "Send an invoice.\n\nGoes out at once."


@pytest.mark.parametrize("doc", [None, "", "   \n  "])
def test_no_docstring_is_empty(doc: str | None) -> None:
    docstring = read_docstring(with_doc(doc))

    assert (docstring.description, docstring.parameters) == ("", {})


def test_a_line_with_a_colon_is_no_parameter() -> None:
    docstring = read_docstring(with_doc("Adds. Example: 1 + 1.\n\nUnits: none"))

    assert docstring.parameters == {}
    assert docstring.description == "Adds. Example: 1 + 1.\n\nUnits: none"
