"""A tool that raises, hangs, returns garbage, 50 MB or what is no JSON never kills a run or a worker."""

import asyncio
import collections
import enum
import itertools
import json
import math
import time
import types
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from numbers import Integral, Real

import pytest
from django.contrib.auth.models import Group
from django.utils.translation import gettext_lazy
from hypothesis import given, strategies as st
from pydantic import BaseModel

from ravi_django import tool
from ravi_django.kernel import (
    AudioBlock,
    CancellationError,
    ChatMessage,
    CodeBlock,
    DataBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolExecutionResult,
    ToolResultBlock,
    ToolUseBlock,
    TransientError,
    UIResourceBlock,
    UnknownBlock,
    VideoBlock,
)
from ravi_django.kernel.content import blocks_adapter, blocks_json
from ravi_django.models import Blob, HumanRequest, JournalEntry, Run, Status, StreamFrame, Turn
from tests.support import world
from tests.support.cases import case
from tests.support.runs import asked, code, drive, make_run, take_over
from tests.support.tool_calls import calling, on_the_loop
from tests.support.world import NotJson, entries_encode, is_small, result_of

PROMISES = ["idempotent", "at_most_once", "transactional"]


class Model(BaseModel):
    name: str
    inner: dict[str, int]


@dataclass
class Data:
    name: str
    when: datetime


class Colour(enum.Enum):
    RED = "red"


class Evil:
    """Says nothing of itself."""

    def __str__(self):
        raise ValueError("no")

    __repr__ = __str__


class Faceless:
    pass


class Count:
    """A number of a library, as numpy has them."""

    def __int__(self):
        return 4


class Share:
    def __float__(self):
        return 0.5


Integral.register(Count)
Real.register(Share)


def nested(depth, kind=list):
    value = "deep"
    for _ in range(depth):
        value = [value] if kind is list else {"in": value}
    return value


def circular():
    value = {"name": "loop"}
    value["self"] = [value]
    return value


ODD = {
    "half a surrogate pair": lambda: "a\ud800b",
    "NUL": lambda: "a\0b",
    "bytes that are no text": lambda: b"\xff\xfe",
    "nan": lambda: {"x": math.nan, "y": -math.inf},
    "exception": lambda: [ValueError("as a value")],
    "huge int block": lambda: DataBlock(data={"x": 10**5000}),
    "nan block": lambda: DataBlock(data={"x": [math.nan, math.inf]}),
    "bytes block": lambda: DataBlock(data=b"\xff"),
    "generator": lambda: (number for number in range(3)),
    "enum": lambda: Colour.RED,
    "set": lambda: {1},
    "values": lambda: {"a": 1}.values(),
    "made without a check": lambda: TextBlock.model_construct(text=5),
    "half a result": lambda: ToolExecutionResult.model_construct(content=[5, None, TextBlock(text="x")], is_error=0),
    "mixed": lambda: [TextBlock(text="a"), "b", {"c": 1}, None],
    "unknown block": lambda: UnknownBlock(type="hologram", x=math.nan, y={"z": b"\xff"}),
    "many": lambda: [TextBlock(text="x")] * 20_000,
}
NOT_JSON = {
    "endless": lambda: itertools.count(),
    "bytes inside": lambda: {"x": [b"\xff"]},
    "circular": circular,
    "deep": lambda: nested(5000),
    "deep dict": lambda: nested(300, dict),
    "deep block": lambda: DataBlock(data=nested(230)),
    "circular block": lambda: DataBlock(data=circular()),
    "odd keys": lambda: {(1, 2): 3, None: 4, Evil: 5},
    "evil": Evil,
    "evil inside": lambda: [1, Evil()],
    "evil key": lambda: {Evil(): 1},
    "evil block": lambda: DataBlock(data={"x": Evil()}),
    "object": object,
    "faceless": Faceless,
    "function": lambda: len,
    "class": lambda: Model,
    "made without anything": lambda: TextBlock.model_construct(),
    "no result": lambda: ToolExecutionResult.model_construct(content=None),
    "a future of another loop": lambda: NotImplemented,
}
GARBAGE = {**ODD, **NOT_JSON}


# One of each way through a run; `test_garbage_makes_a_message_that_a_model_can_be_sent` takes all of them.
DRIVEN = [
    *("half a surrogate pair", "nan", "half a result", "circular", "deep", "evil", "endless", "no result", "many"),
    "a future of another loop",
]


@pytest.mark.parametrize(("name", "effect"), list(zip(DRIVEN, itertools.cycle([*PROMISES, "async"]), strict=False)))
@pytest.mark.django_db(transaction=True)
def test_garbage_is_told_and_recorded_and_the_run_goes_on(name, effect, clock):
    def give():
        """Give."""
        return GARBAGE[name]()

    given = tool(name="give")(on_the_loop(give)) if effect == "async" else tool(effect=effect)(give)
    code(calling("give"), tools=[given])
    run = drive(make_run(), dies="end")
    content = JournalEntry.objects.get(run=run, kind="tool.call", phase="result").result
    run = take_over(clock, run)
    assert (run.status, run.error) == (Status.COMPLETED, None)
    fails = name in NOT_JSON and effect != "at_most_once"
    assert run.output.startswith("error: " if fails else "ok: ")
    assert content


def test_garbage_makes_a_message_that_a_model_can_be_sent():
    for name, make in NOT_JSON.items():
        with case(name), pytest.raises(NotJson, match=r"is not JSON|has more than 10000 items"):
            result_of(make())
    for name, make in ODD.items():
        with case(name):
            found = result_of(make())
            turn = ChatMessage(role=Role.TOOL, content=[ToolResultBlock(call_id="1", content=found.content)])
            stored = json.loads(entries_encode(turn.to_json()), parse_constant=pytest.fail)
            assert ChatMessage.model_validate(stored).to_json() == turn.to_json()
            assert turn.digest
            assert found.content


ROWS = {"QuerySet": lambda: Group.objects.all(), "Group": Group, "dict": circular}


@pytest.mark.parametrize(("effect", "kind"), list(zip([*PROMISES, "agent"], itertools.cycle(ROWS), strict=False)))
@pytest.mark.django_db(transaction=True)
def test_rows_are_no_result(kind, effect, caplog):
    """A transactional tool has written nothing then, and an at-most-once effect has happened."""

    def give():
        """Give."""
        Group.objects.create(name="written")
        return ROWS[kind]()

    async def story(ctx, inbox):
        return ROWS[kind]()

    code(
        story if effect == "agent" else calling("give"), tools=[] if effect == "agent" else [tool(effect=effect)(give)]
    )
    run = drive(make_run())
    if effect == "at_most_once":
        assert run.output == f"ok: done; the result of type {kind} is not JSON"
        assert [record.levelname for record in caplog.records if record.name == "ravi.tools"] == ["ERROR"]
        return
    text = run.error["message"] if effect == "agent" else run.output
    assert f"the result of type {kind} is not JSON" in text and "return queryset.values()" in text
    assert run.status == (Status.FAILED if effect == "agent" else Status.COMPLETED)
    assert Group.objects.exists() == (effect == "idempotent")


@pytest.mark.parametrize("make", [lambda: (Group() for _ in range(2)), lambda: {"groups": (Group() for _ in range(2))}])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.django_db(transaction=True)
def test_a_generator_of_rows_that_an_at_most_once_tool_returns_is_not_an_empty_list(make, is_async, caplog):
    def give():
        """Give."""
        return make()

    code(calling("give"), tools=[tool(name="give", effect="at_most_once")(on_the_loop(give) if is_async else give)])
    kind = type(make()).__name__
    assert drive(make_run()).output == f"ok: done; the result of type {kind} is not JSON"
    assert [record.levelname for record in caplog.records if record.name == "ravi.tools"] == ["ERROR"]


@pytest.mark.parametrize("effect", [*PROMISES, "agent", "async"])
@pytest.mark.django_db(transaction=True)
def test_the_values_of_a_queryset_are_read(effect):
    def give():
        """Give."""
        return {"groups": Group.objects.values("name")}

    async def story(ctx, inbox):
        return Group.objects.values("name")

    given = tool(name="give")(on_the_loop(give)) if effect in ("async", "agent") else tool(effect=effect)(give)
    code(story if effect == "agent" else calling("give"), tools=[given])
    Group.objects.create(name="staff")
    rows = '[{"name":"staff"}]'
    assert drive(make_run()).output == (rows if effect == "agent" else f'ok: {{"groups":{rows}}}')


@pytest.mark.parametrize("effect", [*PROMISES, "agent"])
@pytest.mark.parametrize(
    "make", [lambda rows: {"rows": rows}, lambda rows: rows.iterator()], ids=["inside", "iterator"]
)
@pytest.mark.django_db(transaction=True)
def test_too_many_rows_are_refused_and_not_cut(effect, make, monkeypatch, clock):
    """The first rows alone would pass for all."""
    world.patch(monkeypatch, "MAX_ITEMS", 2)

    def give():
        """Give."""
        return make(Group.objects.values("name"))

    async def story(ctx, inbox):
        return {"rows": Group.objects.values("name")}

    code(
        story if effect == "agent" else calling("give"), tools=[] if effect == "agent" else [tool(effect=effect)(give)]
    )
    Group.objects.bulk_create(Group(name=name) for name in "abc")
    run = drive(make_run())
    kind = type(make(Group.objects.values())).__name__
    if effect == "at_most_once":
        assert run.output == f"ok: done; the result of type {kind} has more than 2 items"
        return
    assert run.status == (Status.FAILED if effect == "agent" else Status.COMPLETED)
    text = run.error["message"] if effect == "agent" else run.output
    assert "has more than 2 items" in text and "return queryset.values()[:2]" in text


AS_THEY_ARE = [
    *(TextBlock(text="t"), CodeBlock(code="c", language="py"), DataBlock(data={"a": None}), ErrorBlock(message="m")),
    *(ImageBlock(data="QUJD", mime_type="image/png"), AudioBlock(url="https://a"), VideoBlock(url="https://v")),
    *(DocumentBlock(data="QUJD", name="d"), UIResourceBlock(uri="ui://1", text="<b>"), UnknownBlock(type="new", x=1)),
]


@pytest.mark.parametrize(
    ("value", "content"),
    [
        *((block, [block]) for block in AS_THEY_ARE),
        (
            ToolUseBlock(tool_name="x", call_id="1"),
            [DataBlock(data={"type": "tool_use", "tool_name": "x", "arguments": {}, "call_id": "1"})],
        ),
        (ToolResultBlock(call_id="1", content=[TextBlock(text="in")]), [TextBlock(text="in")]),
        (ThinkingBlock(text="th", signature="s"), [TextBlock(text="th")]),
        ([TextBlock(text="a"), "b", {"c": 1}], [TextBlock(text="a"), TextBlock(text="b"), TextBlock(text='{"c":1}')]),
        (DataBlock(data=math.nan), [DataBlock(data=None)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_value_has_its_content(value, content):
    assert result_of(value).content == content


def test_any_return_value_becomes_text():
    for value, text in (
        ("text", "text"), (None, ""), (0, "0"), (False, "false"), ([1, "a", None], '[1,"a",null]'),
        ({"b": 1, "a": [2.5]}, '{"b":1,"a":[2.5]}'),
        ({"lazy": gettext_lazy("yes")}, '{"lazy":"yes"}'),
        ({1}, "[1]"), (b"bytes", "bytes"), ([TextBlock(text="two "), TextBlock(text="blocks")], "two \nblocks"),
        (ToolExecutionResult(content=[TextBlock(text="result")]), "result"), (Decimal("1.50"), '"1.50"'),
        (Model(name="n", inner={"a": 1}), '{"name":"n","inner":{"a":1}}'),
        ([Model(name="n", inner={})], '[{"name":"n","inner":{}}]'), ((number for number in range(3)), "[0,1,2]"),
        (collections.UserList([range(2), {3}]), "[[0,1],[3]]"), ((Count(), Share()), "[4,0.5]"),
        (types.MappingProxyType({"a": collections.UserDict(b=1)}), '{"a":{"b":1}}'),
        (collections.ChainMap({"a": 1}, {"b": {}.items()}), '{"b":[],"a":1}'), (collections.UserString("b"), '"b"'),
        ({"raw": [memoryview(b"c"), bytearray(b"d")]}, '{"raw":["c","d"]}'),
        ({"failed": KeyError("password=hush")}, '{"failed":"KeyError: \'password=[key]\'"}'),
        (({"name": name} for name in ["a\0", "b\ud800"]), '[{"name":"a\ufffd"},{"name":"b?"}]'),
        ({"names": (name for name in ["a\0", "b\ud800"])}, '{"names":["a\ufffd","b?"]}'),
        (Data("n", datetime(2026, 1, 2, tzinfo=UTC)), '{"name":"n","when":"2026-01-02T00:00:00Z"}'),
        (b"\xff", "[1 bytes that are no text]"),
    ):  # fmt: skip
        assert result_of(value).text.replace("\n", "") == text.replace("\n", "")
    for block in (ErrorBlock(message="m"), ToolResultBlock(call_id="1", is_error=True)):
        assert result_of(block).is_error and result_of(["x", block]).is_error
    assert not result_of(TextBlock(text="fine")).is_error


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20) | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(
    value=values | values.map(lambda value: DataBlock(data=value)) | st.lists(values.map(lambda v: DataBlock(data=v)))
)
def test_every_value_has_a_form_that_a_row_holds(value):
    try:
        result = result_of(value)
    except NotJson:  # bytes that are no text
        return
    row = json.loads(entries_encode(blocks_json(result.content)), parse_constant=pytest.fail)
    assert blocks_adapter.validate_python(row) == result.content
    assert "\0" not in json.dumps(row)
    assert result.content or value == []


@given(value=values)
def test_what_the_loop_converts_is_little(value):
    if is_small(value):
        assert len(entries_encode(value)) < 200_000
    for much in ("x" * 20_000, [["x"] * 100] * 100, Faceless(), 10**100_000):
        assert not is_small(much)
    assert is_small({"a": [1, 2.5, None, "x", True]})


RAISED = [
    *(ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(1), RecursionError()),
    *(MemoryError(), asyncio.CancelledError(), CancellationError("of its own"), asyncio.InvalidStateError()),
]
WAYS = ["idempotent", "async", "transactional"]


@pytest.mark.parametrize(
    ("raised", "effect"),
    [*zip(RAISED, itertools.cycle(WAYS), strict=False)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.django_db(transaction=True)
def test_whatever_a_tool_raises_is_told(raised, effect, clock):
    if effect == "async" and isinstance(raised, GeneratorExit):
        return  # no coroutine can raise it

    def fail():
        """Fail."""
        raise raised

    failing = tool(name="fail")(on_the_loop(fail)) if effect == "async" else tool(effect=effect)(fail)
    code(calling("fail"), tools=[failing])
    run = take_over(clock, drive(make_run(), dies="end"))
    assert (run.status, run.output[:6]) == (Status.COMPLETED, "error:")
    assert effect == "async" or type(raised).__name__ in run.output


@pytest.mark.parametrize("raised", [ValueError, TransientError])
@pytest.mark.parametrize("effect", PROMISES)
@pytest.mark.django_db(transaction=True)
def test_keys_and_passwords_in_an_exception_reach_nobody(effect, raised, clock):
    @tool(effect=effect)
    def fail():
        raise raised("401 for https://x.example/?a=1&api_key=hush-1; postgres://me:hush-2@db/x password=hush-3")

    code(calling("fail"), tools=[fail])
    run = drive(make_run())
    while run.status == Status.PENDING:
        run = take_over(clock, run)
    kept = [list(model.objects.values()) for model in (Run, JournalEntry, Turn, HumanRequest, StreamFrame)]
    assert "401 for https://x.example/?a=1&api_key=[key]" in str(kept)
    assert "hush" not in str(kept)


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.django_db(transaction=True)
def test_an_at_most_once_effect_that_ends_oddly_is_a_persons_matter(raised, is_async):
    def fail():
        """Fail."""
        raise raised

    failing = tool(name="fail", effect="at_most_once")(on_the_loop(fail) if is_async else fail)
    code(calling("fail"), tools=[failing])
    run = drive(make_run())
    assert type(raised).__name__ in asked(run).text


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.django_db(transaction=True)
def test_50_megabytes_are_no_trouble(is_async, clock):
    much = "0123456789" * 5_000_000
    longest = 0.0

    def give():
        """Give."""
        return much

    async def story(ctx, inbox):
        nonlocal longest

        async def watch():
            nonlocal longest
            while True:
                before = time.thread_time()
                await asyncio.sleep(0.005)
                longest = max(longest, time.thread_time() - before)

        watching = asyncio.create_task(watch())
        result = await ctx.tool("give")
        watching.cancel()
        return result.text[-60:]

    code(story, tools=[tool(name="give")(on_the_loop(give) if is_async else give)])
    run = take_over(clock, drive(make_run(), dies="end"))
    assert run.output.endswith(f"[cut here: {50_000_000 - 1024 * 1024} of 50000000 bytes left out]"[-60:])
    assert Blob.objects.get(encoding="text+zlib").size == 50_000_000
    assert longest < 1.0, "the loop stood still"
