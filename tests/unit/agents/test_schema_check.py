"""A schema from a form is held against any answer in bounded time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from ravi_django.agents.result import ResultRejected, ResultType
from ravi_django.kernel import InvalidInputError

BAD = "^(a+)+$"


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"type": "string", "pattern": BAD}, "a" * 40 + "!"),
        ({"patternProperties": {BAD: {"type": "string"}}}, {"a" * 40 + "!": 1}),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$ref": "#/definitions/a"}}
            | {"definitions": {"a": {"pattern": BAD}}},
            ["a" * 40 + "!"],
        ),
        ({"patternProperties": {BAD: {}}, "additionalProperties": False}, {"a" * 40 + "!": 1}),
        ({"uniqueItems": True}, [{"number": number} for number in range(20_000)]),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"anyOf": [{"$ref": "#/$defs/a"}] * 2, "minItems": 9}}}},
            json.loads("[" * 60 + "]" * 60),
        ),
    ],
)
def test_no_answer_holds_the_worker_up(schema: dict[str, Any], answer: Any) -> None:
    wanted = ResultType(schema)
    began = time.process_time()

    try:
        wanted.from_text(json.dumps(answer))
    except ResultRejected as error:
        assert len(str(error)) < 1100

    assert time.process_time() - began < 5


def test_patterns_and_unique_items_say_what_they_said() -> None:
    wanted = ResultType(
        {
            "type": "object",
            "properties": {"code": {"pattern": "b+"}, "seen": {"uniqueItems": True}},
            "patternProperties": {"^x-": {"type": "integer"}},
            "additionalProperties": False,
        }
    )
    fits = {"code": "abbc", "seen": [1, True, "1", [1], {"a": 1}, {"a": True}, 0, False, None], "x-a": 1}

    assert wanted.from_text(json.dumps(fits)).value == fits
    for wrong, words in [
        ({"code": "ac"}, "code: 'ac' does not match"),
        ({"seen": [{"a": [1]}, 2, {"a": [1.0]}]}, "seen: the array has non-unique"),
        ({"x-a": "1"}, "x-a: '1' is not of type"),
        ({"y": 1}, "'y' was unexpected"),
    ]:
        with pytest.raises(ResultRejected, match=words):
            wanted.from_text(json.dumps(wrong))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#"}, "never ends"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "never ends"),
        ({"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}]}}}, "never ends"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"patternProperties": {"(a)\\1": {}}}, "pattern"),
        ({"pattern": "((a{100}){100}){100}"}, "pattern"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "draft 3"),
        ({"items": {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "a"}}, "at the root"),
        (
            {"$ref": "#/$defs/a0", "$defs": {"a12": {}}}
            | {"$defs": {**{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(12)}, "a12": {}}},
            "again and again",
        ),
    ],
)
def test_what_never_comes_to_an_end_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        ResultType(schema)


def test_a_schema_may_hold_itself_further_down() -> None:
    tree = {"type": "object", "properties": {"name": {"type": "string"}, "below": {"items": {"$ref": "#"}}}}

    assert ResultType(tree).from_text('{"name": "a", "below": [{"name": "b"}]}').value["below"] == [{"name": "b"}]
    with pytest.raises(ResultRejected, match=r"below\.0\.name"):
        ResultType(tree).from_text('{"below": [{"name": 1}]}')
    deep = '{"below": [' * 90 + '{"name": 1}' + "]}" * 90
    with pytest.raises(ResultRejected):
        ResultType(tree).from_text(deep)


def test_what_a_validator_of_ones_own_chokes_on_goes_back_to_the_model() -> None:
    class Priced(BaseModel):
        currency: str

        @field_validator("currency")
        @classmethod
        def _known(cls, value: str) -> str:
            return {"EUR": "€"}[value]

    with pytest.raises(ResultRejected, match="KeyError: 'XXX'"):
        ResultType(Priced).from_text('{"currency": "XXX"}')
