import asyncio
import functools
import inspect
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Optional, TypeVar

import pytest
from django.db.models import QuerySet
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field

from ravi_django.agents import FunctionTool, tool
from ravi_django.agents.tools.signature import read_docstring
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import INVALID_ARGUMENTS_KEY, Effect, HumanInput, Risk, RunContext, Tool, ToolArgumentsError
from ravi_django.models import Session
from tests.support.cases import case


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Address(BaseModel):
    street: str
    zip: int


@tool
def send_invoice(customer: str, amount: Annotated[float, Field(gt=0)], copies: int = 1) -> str:
    """Send an invoice.

    Args:
        customer: who gets it
        amount: in dollars
        copies: how many
    """
    return f"{customer} {amount} {copies}"


def refusal(function: FunctionTool, arguments: dict[str, Any]) -> ToolArgumentsError:
    with pytest.raises(ToolArgumentsError) as caught:
        function.validate(arguments)
    return caught.value


def test_what_a_function_says_is_its_tool() -> None:
    # name description and schema come from the function
    assert (send_invoice.name, send_invoice.description) == ("send_invoice", "Send an invoice.")
    assert send_invoice.parameters == {
        "type": "object",
        "properties": {"customer": {"type": "string", "description": "who gets it"},
            "amount": {"type": "number", "exclusiveMinimum": 0, "description": "in dollars"},
            "copies": {"type": "integer", "default": 1, "description": "how many"}},
        "required": ["customer", "amount"], "additionalProperties": False,
    }  # fmt: skip
    # options are kept
    made = tool(
        name="pay", description="Pays.", risk="critical", effect="transactional", timeout=5, permission="shop.pay"
    )(lambda amount: amount)
    assert (made.name, made.description) == ("pay", "Pays.")
    assert (made.risk, made.effect, made.timeout, made.permission) == (
        Risk.CRITICAL, Effect.TRANSACTIONAL, 5.0, "shop.pay",
    )  # fmt: skip
    # effect follows the risk
    promised = {risk: tool(risk=risk)(plain).promised_effect for risk in ("safe", "high", "critical")}
    assert promised == {"safe": Effect.IDEMPOTENT, "high": Effect.AT_MOST_ONCE, "critical": Effect.AT_MOST_ONCE}
    # google style
    docstring = read_docstring(with_doc(GOOGLE))
    assert docstring.parameters == {"customer": "who gets it, by name", "amount": "in dollars: gross", "rest": "more"}
    assert docstring.description == "Send an invoice.\n\nGoes out at once.\n\nNote: cannot be called back."
    # rest style
    docstring = read_docstring(with_doc(REST))
    assert docstring.parameters == {"customer": "who gets it, by name", "amount": "in dollars: gross"}
    assert docstring.description == "Send an invoice.\n\nGoes out at once."
    # no docstring is empty
    for doc in [None, "", "   \n  "]:
        with case(doc):
            docstring = read_docstring(with_doc(doc))
            assert (docstring.description, docstring.parameters) == ("", {})
    # a line with a colon is no parameter
    docstring = read_docstring(with_doc("Adds. Example: 1 + 1.\n\nUnits: none"))
    assert (docstring.parameters, docstring.description) == ({}, "Adds. Example: 1 + 1.\n\nUnits: none")


def test_it_is_called_like_its_function() -> None:
    assert isinstance(send_invoice, Tool)
    assert (send_invoice("ACME", 3.5, copies=2), send_invoice.__name__) == ("ACME 3.5 2", "send_invoice")
    assert list(inspect.signature(send_invoice).parameters) == ["customer", "amount", "copies"]
    # validated arguments have python types and defaults
    values = send_invoice.validate({"customer": "ACME", "amount": "3.5"})
    assert values == {"customer": "ACME", "amount": 3.5, "copies": 1}
    assert send_invoice.execute(**values) == "ACME 3.5 1"

    # async function is executed as one
    @tool
    async def double(number: int) -> int:
        return number * 2

    assert inspect.iscoroutinefunction(double.execute)
    assert asyncio.run(double.execute(**double.validate({"number": 4}))) == 8
    assert asyncio.run(double(5)) == 10

    # bound method is a tool
    class Shop:
        def price(self, item: str) -> str:
            return f"{item}: 3"

    made = FunctionTool(Shop().price)
    assert (made.name, made.execute(**made.validate({"item": "tea"}))) == ("price", "tea: 3")
    # without run context nothing is injected
    assert send_invoice.context_parameter is None and send_invoice.input_parameter is None


def transfer(account: str, amount: "Amount", ctx: RunContext, told: HumanInput | None = None) -> str:
    """Transfer money.

    Args:
        amount: in euros
    """
    return f"{amount} from {account}"


Amount = int


async def transfer_later(account: str, amount: int) -> str:
    """Transfer money."""
    return f"{amount} from {account}"


class Bank:
    """A bank."""

    async def __call__(self, account: str, amount: int) -> str:
        """Transfer money."""
        return f"{amount} from {account}"

    def of_acme(self, amount: int, account: str) -> str:
        """Transfer money."""
        return f"{amount} from {account}"

    acme = functools.partialmethod(of_acme, account="ACME")

    @staticmethod
    def static(account: str, amount: int) -> str:
        """Transfer money."""
        return f"{amount} from {account}"


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return called


ACME = {"account": "ACME", "ctx": None, "told": None}
BOUND = {
    "keyword": functools.partial(transfer, **ACME),
    "positional": functools.partial(transfer, "ACME", ctx=None, told=None),
    "nested": functools.partial(functools.partial(transfer, ctx=None, told=None), account="ACME"),
    "async": functools.partial(transfer_later, account="ACME"),
    "callable": functools.partial(Bank(), account="ACME"),
    "partialmethod": Bank().acme,
    "static": functools.partial(Bank.static, account="ACME"),
    "decorated": logged(functools.partial(transfer, **ACME)),
    "a part of a decorated one": functools.partial(logged(transfer), **ACME),
    "a part of a tool": functools.partial(tool(transfer), **ACME),
}


@pytest.mark.parametrize("kind", BOUND)
def test_what_is_bound_is_not_the_models(kind: str) -> None:
    made = tool(name="transfer")(BOUND[kind])
    assert list(made.parameters["properties"]) == ["amount"]
    assert made.description == made.__doc__.partition("\n")[0] == "Transfer money."  # type: ignore[union-attr]
    assert (made.context_parameter, made.input_parameter) == (None, None)
    assert refusal(made, {"amount": 3, "account": "SOMEBODY"}).field == "account"
    done = made.execute(**made.validate({"amount": 3}))
    assert (asyncio.run(done) if inspect.isawaitable(done) else done) == "3 from ACME"


def test_a_tool_is_read_through_callables_and_partials_without_a_name() -> None:
    made = Toolbox([functools.partial(transfer, account="ACME"), tool(name="bank")(Bank())])
    partial, bank = made.all()
    assert (partial.name, partial.context_parameter, partial.input_parameter) == ("transfer", "ctx", "told")
    assert partial.parameters["properties"] == {"amount": {"type": "integer", "description": "in euros"}}
    assert bank.description == "Transfer money." and inspect.iscoroutinefunction(bank.execute)


def test_what_a_model_got_wrong_is_named() -> None:
    # bad argument is named
    for arguments, field, words in [
        ({"amount": 1}, "customer", "argument 'customer' is missing"),
        ({"customer": "A", "amount": "much"}, "amount", "argument 'amount'"),
        ({"customer": "A", "amount": -1}, "amount", "greater than 0"),
        ({"customer": "A", "amount": 1, "cc": "x"}, "cc",
            "unknown argument 'cc' (there are: customer, amount, copies)"),
        ({"customer": None, "amount": 1}, "customer", "argument 'customer'"),
    ]:  # fmt: skip
        with case(arguments, field, words):
            error = refusal(send_invoice, arguments)
            assert error.field == field
            assert words in str(error)
    # words for the model stay short and do not repeat its input
    error = refusal(send_invoice, {f"unknown_{number}": "x" * 10_000 for number in range(50)})
    assert len(str(error)) < 600
    assert "more" in str(error)
    # arguments that were no json are refused
    assert "not valid JSON: {oops" in str(refusal(send_invoice, {INVALID_ARGUMENTS_KEY: "{oops"}))

    # a nested argument is named by its place
    @tool
    def ship(to: Address, items: list[int]) -> None: ...

    error = refusal(ship, {"to": {"street": "x", "zip": "y"}, "items": [1, "z"]})
    assert "'to.zip'" in str(error) and "'items.1'" in str(error)
    assert ship.validate({"to": {"street": "x", "zip": 1}, "items": []})["to"] == Address(street="x", zip=1)


def test_parameters_of_every_kind() -> None:
    # rich annotations have a schema and are converted
    @tool
    def book(
        day: date, size: Size, price: Decimal, mode: Literal["fast", "slow"] = "fast", note: str | None = None
    ) -> None: ...

    values = book.validate({"day": "2025-01-02", "size": "large", "price": "1.10"})
    assert values == {
        "day": date(2025, 1, 2), "size": Size.LARGE, "price": Decimal("1.10"), "mode": "fast", "note": None,
    }  # fmt: skip
    assert book.parameters["properties"]["mode"]["enum"] == ["fast", "slow"]
    assert book.parameters["required"] == ["day", "size", "price"]

    # parameters may have any name
    @tool
    def odd(json: str, copy: int, model_config: bool, _x: float, schema: str = "s") -> None: ...

    arguments = {"json": "j", "copy": 1, "model_config": True, "_x": 0.5}
    assert list(odd.parameters["properties"]) == ["json", "copy", "model_config", "_x", "schema"]
    assert odd.validate(arguments) == {**arguments, "schema": "s"}

    # unannotated and missing parameters
    @tool
    def anything(value, other=3): ...
    @tool
    def nothing() -> None: ...

    assert anything.validate({"value": [1, {"a": None}]}) == {"value": [1, {"a": None}], "other": 3}
    assert nothing.validate({}) == {}
    assert nothing.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert "no arguments" in str(refusal(nothing, {"a": 1}))

    # mutable default is not shared between calls
    @tool
    def collect(items: list[int] = []) -> None: ...  # noqa: B006 - the point of the test

    collect.validate({})["items"].append(1)
    assert collect.validate({})["items"] == []


@given(st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=4))
def test_any_arguments_are_either_ready_or_refused_with_words(arguments: dict[str, Any]) -> None:
    try:
        values = send_invoice.validate(arguments)
    except ToolArgumentsError as error:
        assert str(error)
    else:
        assert values.keys() == {"customer", "amount", "copies"}


def plain(a: int, ctx: RunContext) -> None: ...
def optional(a: int, ctx: RunContext | None = None) -> None: ...
def old_optional(a: int, ctx: Optional[RunContext] = None) -> None: ...  # noqa: UP045 - people write it
def as_text(a: int, ctx: "RunContext") -> None: ...
def as_optional_text(a: int, ctx: "Optional[RunContext]" = None) -> None: ...  # noqa: UP045
def as_union_text(a: int, ctx: "RunContext | None" = None) -> None: ...
def unimported(a: int, ctx: "kernel.RunContext") -> None: ...  # noqa: F821
def annotated(a: int, ctx: Annotated[RunContext, "injected"]) -> None: ...
def first(ctx: RunContext, a: int) -> None: ...


def test_what_is_injected_is_found_and_hidden() -> None:
    # run context is found and hidden
    for function in [
        plain, optional, old_optional, as_text, as_optional_text, as_union_text, unimported, annotated, first,
    ]:  # fmt: skip
        with case(function):
            made = FunctionTool(function)
            assert (made.context_parameter, list(made.parameters["properties"])) == ("ctx", ["a"])
            assert (made.validate({"a": 1}), refusal(made, {"a": 1, "ctx": {}}).field) == ({"a": 1}, "ctx")
    # a persons input is found and hidden
    for function in [asked, asked_maybe, asked_the_old_way, asked_as_text, asked_unimported, asked_async]:
        with case(function):
            made = FunctionTool(function)
            assert made.input_parameter == "told"
            assert made.context_parameter == ("ctx" if function is asked_async else None)
            assert (list(made.parameters["properties"]), made.validate({"a": 1})) == (["a"], {"a": 1})
            assert refusal(made, {"a": 1, "told": {"action": "answer"}}).field == "told"


def asked(a: int, told: HumanInput = None) -> None: ...
def asked_maybe(a: int, told: HumanInput | None = None) -> None: ...
def asked_the_old_way(a: int, told: Optional[HumanInput] = None) -> None: ...  # noqa: UP045 - people write it
def asked_as_text(a: int, told: "HumanInput | None" = None) -> None: ...
def asked_unimported(a: int, told: "flow.HumanInput | None" = None) -> None: ...  # noqa: F821
async def asked_async(a: int, ctx: RunContext, told: Annotated[HumanInput | None, "injected"] = None) -> None: ...


def test_what_cannot_be_a_tool_is_refused_with_the_mend() -> None:
    # wrong option is refused at import with its fix
    for options, words in [
        ({"risk": "huge"}, "'safe', 'high', 'critical'"),
        ({"effect": "maybe"}, "'idempotent', 'at_most_once', 'transactional'"), ({"timeout": 0}, "seconds above 0"),
        ({"timeout": "5"}, "seconds above 0"), ({"timeout": True}, "seconds above 0"),
        ({"timeout": float("inf")}, "seconds above 0"), ({"permission": "pay"}, "app_label.codename"),
        ({"name": "two words"}, "letters, digits"), ({"name": ""}, "letters, digits"),
        ({"rsik": "high"}, "name, description, risk, effect, timeout, permission"),
    ]:  # fmt: skip
        with case(options, words):
            with pytest.raises((TypeError, ValueError)) as caught:
                tool(**options)(plain)
            assert words in str(caught.value)
    for function, words in [
        (rest, "name each argument"), (keywords, "name each argument"), (positional, "remove the '/'"),
        (generator, "return one value"), (two_contexts, "remove one"), (two_inputs, "remove one"),
        (unreadable, "import it at module level"), (no_json, "types that JSON can carry"),
        (no_schema, "types that JSON can carry"), (method, "bound method"), (field_default, "Annotated"),
        (Address, "takes a function"), (functools.partial(Address, zip=1), "takes a function"),
        (gives_rows, "list[dict]"), (gives_a_row, "list[dict]"), (gives_unimported_rows, "list[dict]"),
        (gives_bound_rows, "list[dict]"), (gives_one_of, "list[dict]"),
        (functools.singledispatch(plain), "by its first positional argument"),
        ("greet", "write @tool(name='greet')"), (lambda a: a, "with @tool(name=…)"),
    ]:  # fmt: skip
        with case(function, words):
            with pytest.raises((TypeError, ValueError)) as caught:
                tool(function)
            assert words in str(caught.value)


Row, Choice = TypeVar("Row", bound=Session), TypeVar("Choice", Session, str)


def gives_rows() -> QuerySet[Session]: ...
def gives_a_row() -> "dict[str, Session | None]": ...
def gives_unimported_rows() -> "QuerySet[Nowhere]": ...  # noqa: F821
def gives_bound_rows() -> list[Row]: ...
def gives_one_of() -> Choice: ...
def rest(*names: str) -> None: ...
def keywords(**names: str) -> None: ...
def positional(a: int, /) -> None: ...
def generator(a: int):
    yield a


def two_contexts(one: RunContext, two: RunContext) -> None: ...
def two_inputs(one: HumanInput, two: HumanInput) -> None: ...
def unreadable(a: "Nowhere") -> None: ...  # noqa: F821
def no_json(a: asyncio.Event) -> None: ...
def no_schema(a: Callable[[int], int]) -> None: ...
def method(self, a: int) -> None: ...
def field_default(a: int = Field(3)) -> None: ...


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
