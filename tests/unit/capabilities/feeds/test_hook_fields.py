"""Items out of somebody else's JSON."""

from __future__ import annotations

import pytest

from ravi_django.capabilities.feeds.fields import MOST, at_path, faults, items_in
from ravi_django.kernel import InputTooLargeError, InvalidInputError


def test_the_usual_names_are_known():
    (item,) = items_in({"guid": 7, "title": "Down", "text": "It is.", "url": "https://example.com/7", "x": [1]}, {})

    assert (item.id, item.title, item.text, item.url) == ("7", "Down", "It is.", "https://example.com/7")
    assert item.extra == {
        "body": {"guid": 7, "title": "Down", "text": "It is.", "url": "https://example.com/7", "x": [1]}
    }


def test_the_options_say_where_else_they_are():
    body = {"event": {"id": "e1", "what": "down"}, "hosts": ["a", "b"], "secret": "tiger"}
    options = {"id": "event.id", "title": "event.what", "text": "hosts.1", "keep": ["hosts", "no.such"]}

    (item,) = items_in(body, options)

    assert (item.id, item.title, item.text) == ("e1", "down", "b")
    assert item.extra == {"hosts": ["a", "b"], "no.such": None}


def test_an_array_is_as_many_items():
    assert [item.id for item in items_in([{"id": 1}, {"id": 2}], {})] == ["1", "2"]
    assert [item.id for item in items_in({"data": {"rows": [{"id": 3}]}}, {"items": "data.rows"})] == ["3"]
    assert [item.id for item in items_in({"data": {"id": 4}}, {"items": "data"})] == ["4"]
    assert items_in([], {}) == []


def test_without_an_id_it_is_known_by_all_that_it_says():
    first, again, other = (items_in(body, {})[0] for body in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}))

    assert first.identity == again.identity != other.identity


@pytest.mark.parametrize(
    ("body", "options", "field"),
    [
        (7, {}, "body"),
        ("text", {}, "body"),
        (None, {}, "body"),
        ([1], {}, "0"),
        ([{"id": 1}, None], {}, "1"),
        ({"id": {"a": 1}}, {}, "id"),
        ({"title": True}, {}, "title"),
        ([{"text": []}], {}, "0.text"),
        ({"a": 1}, {"id": "event.id"}, "event.id"),
        ({"rows": 5}, {"items": "rows"}, "rows"),
        ({}, {"items": "rows"}, "rows"),
        ({"rows": [{"k": {}}]}, {"items": "rows", "title": "k"}, "rows.0.k"),
        ([{}] * (MOST + 1), {}, "body"),
    ],
)
def test_what_cannot_be_meant_is_named(body, options, field):
    with pytest.raises(InvalidInputError) as caught:
        items_in(body, options)

    assert caught.value.field == field


def test_what_is_too_big_is_said_with_the_mend():
    body = {"id": 1, "log": "x" * 70_000}

    with pytest.raises(InputTooLargeError, match="option keep"):
        items_in(body, {})
    assert items_in(body, {"keep": ["id"]})[0].extra == {"id": 1}


@pytest.mark.parametrize(
    ("path", "value"),
    [("a.b", 1), ("l.0.c", 2), ("l.9", None), ("l.-1", None), ("a.b.c", None), ("x", None), ("l.99999999", None)],
)
def test_a_path_leads_to_a_value_or_nowhere(path, value):
    assert at_path({"a": {"b": 1}, "l": [{"c": 2}]}, path) == value


def test_options_that_are_no_paths_are_named():
    wrong = {"id": 5, "title": "a..b", "items": "", "keep": ["a", 1], "text": "fine"}

    assert [fault.split()[0] for fault in faults(wrong)] == ["id", "title", "items", "keep"]
    assert list(faults({"id": "a", "keep": []})) == []
