"""What a result has to be: schemas, which answers fit, and what is said of those that do not."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from ravi_django.agents.result import ResultRejected, ResultType, free_name
from ravi_django.kernel import INVALID_ARGUMENTS_KEY, InvalidInputError


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
    children: list[Node] = []


SCHEMA = {
    "title": "City",
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/name"}, "people": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "$defs": {"name": {"type": "string", "minLength": 1}},
}


@pytest.mark.parametrize(
    ("model", "answer", "text"),
    [
        (Parcel, '{"order": 7, "sentOn": "2025-03-01"}', '{"order":7,"sentOn":"2025-03-01","weight":"1.50"}'),
        (Point, '{"x": "3"}', '{"x":3,"y":0}'),
        (Named, '{"name": "Ada"}', '{"name":"Ada"}'),
        (list[Point], '[{"x": 1}]', '[{"x":1,"y":0}]'),
        (list[Point], '{"result": [{"x": 1}]}', '[{"x":1,"y":0}]'),
        (Point | Named, '{"result": {"name": "Ada"}}', '{"name":"Ada"}'),
        (int, "42", "42"),
        (Literal["yes", "no"], '{"result": "yes"}', '"yes"'),
        (dict[str, int], '{"result": 1}', '{"result":1}'),
        (Node, '{"name": "a", "children": [{"name": "b"}]}', '{"name":"a","children":[{"name":"b","children":[]}]}'),
        (SCHEMA, '{"name": "Bern", "people": 1}', '{"name":"Bern","people":1}'),
    ],
)
def test_an_answer_becomes_the_canonical_json_of_its_type(model: Any, answer: str, text: str) -> None:
    result = ResultType(model).from_text(answer)

    assert result.text == text
    assert result.value == json.loads(text)


@pytest.mark.parametrize(
    "answer",
    [
        ' \n{"x": 1, "y": 2}\n',
        '```json\n{"x": 1, "y": 2}\n```',
        '```\n{"x": 1, "y": 2}\n```',
        'Here it is:\n```json\n{"x": 1,\n"y": 2}\n```\nAnything else?',
    ],
)
def test_json_is_found_bare_and_in_a_fence(answer: str) -> None:
    assert ResultType(Point).from_text(answer).value == {"x": 1, "y": 2}


def test_a_fence_inside_the_json_is_part_of_it() -> None:
    answer = '```json\n{"name": "see ```py\\n1\\n```"}\n```'

    assert ResultType(Named).from_text(answer).value == {"name": "see ```py\n1\n```"}


@pytest.mark.parametrize(
    ("model", "answer", "words"),
    [
        (Point, "", "it is empty"),
        (Point, "three and four", "it is not JSON"),
        (Point, "```json\n{broken\n```", "it is not JSON"),
        (float, "NaN", "it is not JSON"),
        (Point, '{"y": 1}', "x: Field required"),
        (Point, '{"x": "many", "y": null}', "x: Input should be a valid integer"),
        (Parcel, '{"order": 0, "sentOn": "2025-03-01"}', "order: orders are numbered from 1"),
        (list[Point], '[{"x": 1}, {}]', "1.x: Field required"),
        (SCHEMA, '{"people": -1}', "people: -1 is less than the minimum of 0"),
        (SCHEMA, '{"people": 1}', "'name' is a required property"),
        (SCHEMA, '{"name": ""}', "name: '' should be non-empty"),
        (Named, '{"name": "\\ud800"}', "it is not JSON"),
        (list, "[" * 5000, "it is not JSON"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(model: Any, answer: str, words: str) -> None:
    with pytest.raises(ResultRejected) as caught:
        ResultType(model).from_text(answer)

    assert words in str(caught.value)


@pytest.mark.parametrize("model", [list[Point], {"type": "array", "items": {"type": "integer"}}])
def test_what_is_said_is_bounded(model: Any) -> None:
    answer = json.dumps([{"a" * 5000: "b" * 5000}] * 500)

    with pytest.raises(ResultRejected) as caught:
        ResultType(model).from_text(answer)

    assert len(str(caught.value)) <= 1001
    assert 3 <= str(caught.value).count("; ") <= 5  # no one error takes the place of the others


def test_broken_arguments_are_said_to_be_broken() -> None:
    with pytest.raises(ResultRejected, match=r"not valid JSON: \{x: 1") as caught:
        ResultType(Point).from_arguments({INVALID_ARGUMENTS_KEY: "{x: 1" + " " * 5000})

    assert len(str(caught.value)) <= 1001


def test_nan_in_arguments_is_no_number() -> None:
    with pytest.raises(ResultRejected, match="x: Input should be a valid number"):
        ResultType(dict[str, float]).from_arguments({"x": math.nan})


def test_the_final_tool_shows_the_schema_and_what_the_model_is() -> None:
    spec = ResultType(Parcel).tool_spec("final_result")

    assert spec.parameters["properties"]["sentOn"] == {"format": "date", "type": "string"}
    assert spec.parameters["required"] == ["order", "sentOn"]
    assert "A parcel on its way." in spec.description


@pytest.mark.parametrize("model", [int, list[Point], Point | Named, Node | None, {"properties": {"a": {}}}])
def test_tools_and_formats_take_an_object_whatever_the_result_is(model: Any) -> None:
    kind = ResultType(model)

    assert kind.tool_spec("final_result").parameters["required"] == ["result"]
    assert kind.response_format["json_schema"]["schema"]["type"] == "object"
    assert kind.schema.get("type") != "object"


def test_a_model_that_holds_itself_is_an_object_at_its_root() -> None:
    parameters = ResultType(Node).tool_spec("final_result").parameters

    assert parameters["type"] == "object"
    assert parameters["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}


def test_the_format_is_strict_with_all_properties_named_and_no_others() -> None:
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


@pytest.mark.parametrize(
    "model",
    [
        dict[str, int],
        SCHEMA,
        {"type": "object", "properties": {"any": {}}},
        {"type": "object", "properties": {"all": {"allOf": [{"type": "string"}]}}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
    ],
)
def test_the_format_of_what_cannot_be_strict_is_the_schema_as_it_is(model: Any) -> None:
    kind = ResultType(model)

    assert kind.response_format["json_schema"] == {"name": kind.name, "schema": kind.schema}


def test_the_name_is_one_that_providers_take() -> None:
    assert ResultType({"title": "Ein Ergebnis, lang " + "x" * 99}).name == ("Ein_Ergebnis__lang_" + "x" * 99)[:64]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Parcel", "'Parcel' cannot be a result"),
        (Point(1), "cannot be a result"),
        (type("Opaque", (), {}), "cannot be a result"),
        ({"type": "objekt"}, "is no JSON schema: 'objekt' is not valid"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}, "https://example.org/a.json"),
        ({"$ref": "#/$defs/nothing"}, "'#/$defs/nothing'; put that under $defs"),
    ],
)
def test_what_cannot_be_a_result_is_refused_with_the_mend(model: Any, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ResultType(model)

    assert words in str(caught.value)
    assert caught.value.field == "result_model"


def test_the_final_tools_name_is_free() -> None:
    assert free_name(["add"]) == "final_result"
    assert free_name(["final_result", "final_result_2"]) == "final_result_3"
