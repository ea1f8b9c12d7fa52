"""The built-in tools have one public module."""

import pytest

from ravi_django import tools


def test_all_of_them_are_named_in_one_place():
    assert all(callable(getattr(tools, name)) for name in tools.__all__)
    with pytest.raises(AttributeError, match="NoSuchTool"):
        tools.NoSuchTool  # noqa: B018
