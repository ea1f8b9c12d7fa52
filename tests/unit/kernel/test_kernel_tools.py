import pytest

from ravi_django.kernel import INVALID_ARGUMENTS_KEY, Effect, Risk, Tool, ToolArgumentsError, ToolSpec
from ravi_django.kernel.tools import specs_of


class Greeter(Tool):
    name = "greet"
    description = "Greets."
    parameters = {"type": "object", "properties": {"who": {"type": "string"}}}

    def execute(self, *, who: str = "world") -> str:
        return f"hello {who}"


def test_risks_are_ranked() -> None:
    assert Risk.SAFE.rank < Risk.HIGH.rank < Risk.CRITICAL.rank


@pytest.mark.parametrize(
    ("risk", "effect"),
    [(Risk.SAFE, Effect.IDEMPOTENT), (Risk.HIGH, Effect.AT_MOST_ONCE), (Risk.CRITICAL, Effect.AT_MOST_ONCE)],
)
def test_promise_follows_the_risk(risk: Risk, effect: Effect) -> None:
    tool = Greeter()
    tool.risk = risk

    assert tool.promised_effect is effect


def test_own_promise_goes_before_the_risk() -> None:
    tool = Greeter()
    tool.risk, tool.effect = Risk.CRITICAL, Effect.TRANSACTIONAL

    assert tool.promised_effect is Effect.TRANSACTIONAL


def test_spec_is_what_the_model_sees() -> None:
    spec = Greeter().spec

    assert spec == ToolSpec(name="greet", description="Greets.", parameters=Greeter.parameters)
    assert specs_of([Greeter(), spec]) == [spec, spec]


def test_any_tool_refuses_arguments_that_were_no_json() -> None:
    with pytest.raises(ToolArgumentsError, match=r"the arguments were not valid JSON: \{\"who\": ") as caught:
        Greeter().validate({INVALID_ARGUMENTS_KEY: '{"who": ' + "x" * 10_000})

    assert len(str(caught.value)) < 300


def test_a_tool_without_execute_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Tool needs an execute method"):
        Tool().execute()
