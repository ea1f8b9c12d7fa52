"""What a result has to be: schemas, which answers fit, and what is said of those that do not."""

import json
import math
import time
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from ravi_django.agents.react.result import ResultRejected, ResultType, free_name
from ravi_django.kernel import INVALID_ARGUMENTS_KEY, InvalidInputError
from tests.support.cases import case


class Parcel(BaseModel):
    """A parcel on its way."""

    model_config = ConfigDict(populate_by_name=True)

    order: int
    sent_on: date = Field(alias="sentOn")
    weight: Decimal = Decimal("1.50")

    @field_validator("order")
    @classmethod
    def _real(cls, order: int) -> int:
        if order < 1:
            raise ValueError("orders are numbered from 1")
        return order


@dataclass
class Point:
    x: int
    y: int = 0


class Named(TypedDict):
    name: str


class Node(BaseModel):
    name: str
    children: "list[Node]" = []


SCHEMA = {
    "title": "City", "type": "object",
    "properties": {"name": {"$ref": "#/$defs/name"}, "people": {"type": "integer", "minimum": 0}},
    "required": ["name"], "$defs": {"name": {"type": "string", "minLength": 1}},
}  # fmt: skip


def test_an_answer_becomes_the_canonical_json_of_its_type() -> None:
    for model, answer, text in [
        (Parcel, '{"order": 7, "sentOn": "2025-03-01"}', '{"order":7,"sentOn":"2025-03-01","weight":"1.50"}'),
        (Point, '{"x": "3"}', '{"x":3,"y":0}'), (Named, '{"name": "Ada"}', '{"name":"Ada"}'),
        (list[Point], '[{"x": 1}]', '[{"x":1,"y":0}]'), (list[Point], '{"result": [{"x": 1}]}', '[{"x":1,"y":0}]'),
        (Point | Named, '{"result": {"name": "Ada"}}', '{"name":"Ada"}'), (int, "42", "42"),
        (Literal["yes", "no"], '{"result": "yes"}', '"yes"'), (dict[str, int], '{"result": 1}', '{"result":1}'),
        (Node, '{"name": "a", "children": [{"name": "b"}]}', '{"name":"a","children":[{"name":"b","children":[]}]}'),
        (SCHEMA, '{"name": "Bern", "people": 1}', '{"name":"Bern","people":1}'),
    ]:  # fmt: skip
        with case(model, answer, text):
            result = ResultType(model).from_text(answer)
            assert (result.text, result.value) == (text, json.loads(text))
    # json is found bare and in a fence
    for answer in [
        ' \n{"x": 1, "y": 2}\n', '```json\n{"x": 1, "y": 2}\n```', '```\n{"x": 1, "y": 2}\n```',
        'Here it is:\n```json\n{"x": 1,\n"y": 2}\n```\nAnything else?',
    ]:  # fmt: skip
        assert ResultType(Point).from_text(answer).value == {"x": 1, "y": 2}, answer
    # a fence inside the json is part of it
    answer = '```json\n{"name": "see ```py\\n1\\n```"}\n```'
    assert ResultType(Named).from_text(answer).value == {"name": "see ```py\n1\n```"}


def test_what_does_not_fit_is_said_with_its_place() -> None:
    for model, answer, words in [
        (Point, "", "it is empty"), (Point, "three and four", "it is not JSON"),
        (Point, "```json\n{broken\n```", "it is not JSON"), (float, "NaN", "it is not JSON"),
        (Point, '{"y": 1}', "x: Field required"),
        (Point, '{"x": "many", "y": null}', "x: Input should be a valid integer"),
        (Parcel, '{"order": 0, "sentOn": "2025-03-01"}', "order: orders are numbered from 1"),
        (list[Point], '[{"x": 1}, {}]', "1.x: Field required"),
        (SCHEMA, '{"people": -1}', "people: -1 is less than the minimum of 0"),
        (SCHEMA, '{"people": 1}', "'name' is a required property"),
        (SCHEMA, '{"name": ""}', "name: '' should be non-empty"), (Named, '{"name": "\\ud800"}', "it is not JSON"),
        (list, "[" * 5000, "it is not JSON"),
    ]:  # fmt: skip
        with case(model, answer, words):
            with pytest.raises(ResultRejected) as caught:
                ResultType(model).from_text(answer)
            assert words in str(caught.value)

    with pytest.raises(ResultRejected, match=r"not valid JSON: \{x: 1") as caught:
        ResultType(Point).from_arguments({INVALID_ARGUMENTS_KEY: "{x: 1" + " " * 5000})
    assert len(str(caught.value)) <= 1001
    # nan in arguments is no number
    with pytest.raises(ResultRejected, match="x: Input should be a valid number"):
        ResultType(dict[str, float]).from_arguments({"x": math.nan})


@pytest.mark.parametrize("model", [list[Point], {"type": "array", "items": {"type": "integer"}}])
def test_what_is_said_is_bounded(model: Any) -> None:
    answer = json.dumps([{"a" * 5000: "b" * 5000}] * 500)
    with pytest.raises(ResultRejected) as caught:
        ResultType(model).from_text(answer)
    assert len(str(caught.value)) <= 1001
    assert 3 <= str(caught.value).count("; ") <= 5  # no one error takes the place of the others


def test_what_a_model_is_shown_of_a_type() -> None:
    # the final tool shows the schema and what the model is
    spec = ResultType(Parcel).tool_spec("final_result")
    assert spec.parameters["properties"]["sentOn"] == {"format": "date", "type": "string"}
    assert spec.parameters["required"] == ["order", "sentOn"]
    assert "A parcel on its way." in spec.description
    # a model that holds itself is an object at its root
    parameters = ResultType(Node).tool_spec("final_result").parameters
    assert parameters["type"] == "object"
    assert parameters["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}

    # the format is strict with all properties named and no others
    class Trip(BaseModel):
        to: Point = Field(description="Where it goes")
        stops: list[Point] = []
        note: str | None = None

    described = ResultType(Trip).response_format["json_schema"]
    assert (described["name"], described["strict"]) == ("Trip", True)
    schema = described["schema"]
    assert (schema["required"], schema["additionalProperties"]) == (["to", "stops", "note"], False)
    assert schema["properties"]["to"] == {"anyOf": [{"$ref": "#/$defs/Point"}], "description": "Where it goes"}
    assert schema["$defs"]["Point"]["required"] == ["x", "y"]
    assert "default" not in json.dumps(schema)
    # the name is one that providers take
    assert ResultType({"title": "Ein Ergebnis, lang " + "x" * 99}).name == ("Ein_Ergebnis__lang_" + "x" * 99)[:64]
    # the final tools name is free
    assert free_name(["add"]) == "final_result"
    assert free_name(["final_result", "final_result_2"]) == "final_result_3"
    # tools and formats take an object whatever the result is
    for model in [int, list[Point], Point | Named, Node | None, {"properties": {"a": {}}}]:
        with case(model):
            kind = ResultType(model)
            assert kind.tool_spec("final_result").parameters["required"] == ["result"]
            assert kind.response_format["json_schema"]["schema"]["type"] == "object"
            assert kind.schema.get("type") != "object"
    # the format of what cannot be strict is the schema as it is
    for model in [
        dict[str, int], SCHEMA, {"type": "object", "properties": {"any": {}}},
        {"type": "object", "properties": {"all": {"allOf": [{"type": "string"}]}}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
    ]:  # fmt: skip
        with case(model):
            kind = ResultType(model)
            assert kind.response_format["json_schema"] == {"name": kind.name, "schema": kind.schema}


@pytest.mark.parametrize(("model", "words"), [
    ("Parcel", "'Parcel' cannot be used"), (Point(1), "cannot be used"),
    (type("Opaque", (), {}), "cannot be used"), ({"type": "objekt"}, "not a valid JSON schema: 'objekt' is not valid"),
    ({"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}, "https://example.org/a.json"),
    ({"$ref": "#/$defs/nothing"}, "'#/$defs/nothing'; put that under $defs"),
])  # fmt: skip
def test_what_cannot_be_a_result_is_refused_with_the_mend(model: Any, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ResultType(model)
    assert words in str(caught.value)
    assert caught.value.field == "result_model"


BAD = "^(a+)+$"


@pytest.mark.parametrize(("schema", "answer"), [
    ({"type": "string", "pattern": BAD}, "a" * 40 + "!"),
    ({"patternProperties": {BAD: {"type": "string"}}}, {"a" * 40 + "!": 1}),
    ({"$schema": "http://json-schema.org/draft-07/schema#",
        "items": {"$ref": "#/definitions/a"}} | {"definitions": {"a": {"pattern": BAD}}}, ["a" * 40 + "!"]),
    ({"patternProperties": {BAD: {}}, "additionalProperties": False}, {"a" * 40 + "!": 1}),
    ({"uniqueItems": True}, [{"number": number} for number in range(20_000)]),
    pytest.param(
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"anyOf": [{"$ref": "#/$defs/a"}] * 2, "minItems": 9}}}},
        json.loads("[" * 60 + "]" * 60), marks=pytest.mark.full),
])  # fmt: skip
def test_no_answer_holds_the_worker_up(schema: dict[str, Any], answer: Any) -> None:
    wanted = ResultType(schema)
    began = time.thread_time()
    try:
        wanted.from_text(json.dumps(answer))
    except ResultRejected as error:
        assert len(str(error)) < 1100
    assert time.thread_time() - began < 5


def test_patterns_and_unique_items_say_what_they_said() -> None:
    wanted = ResultType(
        {"type": "object", "properties": {"code": {"pattern": "b+"}, "seen": {"uniqueItems": True}},
            "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    )  # fmt: skip
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
    # what never comes to an end is refused
    for schema, words in [
        ({"$ref": "#"}, "never end"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "never end"),
        ({"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}]}}}, "never end"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"patternProperties": {"(a)\\1": {}}}, "pattern"),
        ({"pattern": "((a{100}){100}){100}"}, "pattern"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "draft 3"),
        ({"items": {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "a"}}, "at the root"),
        (
            {"$ref": "#/$defs/a0", "$defs": {"a12": {}}}
            | {"$defs": {**{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(12)}, "a12": {}}},
            "too often",
        ),
    ]:
        with case(schema, words), pytest.raises(InvalidInputError, match=words):
            ResultType(schema)


def test_a_schema_may_hold_itself_further_down() -> None:
    tree = {"type": "object", "properties": {"name": {"type": "string"}, "below": {"items": {"$ref": "#"}}}}
    assert ResultType(tree).from_text('{"name": "a", "below": [{"name": "b"}]}').value["below"] == [{"name": "b"}]
    with pytest.raises(ResultRejected, match=r"below\.0\.name"):
        ResultType(tree).from_text('{"below": [{"name": 1}]}')
    deep = '{"below": [' * 90 + '{"name": 1}' + "]}" * 90
    with pytest.raises(ResultRejected):
        ResultType(tree).from_text(deep)

    # what a validator of ones own chokes on goes back to the model
    class Priced(BaseModel):
        currency: str

        @field_validator("currency")
        @classmethod
        def _known(cls, value: str) -> str:
            return {"EUR": "€"}[value]

    with pytest.raises(ResultRejected, match="KeyError: 'XXX'"):
        ResultType(Priced).from_text('{"currency": "XXX"}')
