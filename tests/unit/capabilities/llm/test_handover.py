"""A conversation goes on with another family of models in the middle of a turn, and comes back."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from ravi_django import register, submit
from ravi_django.agents import ReActAgent
from ravi_django.calls.llm import LLMFactory
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.kernel import RetryPolicy
from ravi_django.kernel.content import ImageBlock, TextBlock
from ravi_django.models import Run
from ravi_django.testing import run_until_idle
from tests.support.cases import case
from tests.support.providers import (
    Checker,
    Document,
    Line,
    Provider,
    answer,
    call_piece,
    check_claude,
    check_responses,
    chunk,
    claude,
    responses,
    says,
)
from tests.support.providers.chat import check_chat
from tests.support.providers.gemini import call, check_gemini, gemini
from tests.support.providers.mistral import check_mistral
from tests.unit.capabilities.llm.conftest import echo
from tests.unit.capabilities.llm.test_families import LONG
from tests.unit.capabilities.llm.test_gemini import PNG, SIGNATURE, chart
from tests.unit.capabilities.llm.test_responses import Parcel, fc, msg, rs
from tests.unit.capabilities.llm.test_stream_kinds import TEXT, thought, use

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_(computed_)?fields' attribute"),  # litellm's own types
]
RESULT = '{"order": 3}'
BUSY = Document({"error": {"type": "overloaded_error", "message": "later"}}, 503)


@dataclass(frozen=True)
class Family:
    model: str
    calls: list[Line]  # an answer with thoughts, words and two calls
    result: list[Line]  # the typed result
    checker: Checker
    secret: str = ""  # what this family alone sees again

    def at(self, server: Provider) -> Any:
        base = server.url if self.model.startswith(("anthropic", "gemini")) else f"{server.url}/v1"
        options = {"dialect": "responses"} if self.model == "openai/gpt-5" else {}
        policy = RetryPolicy(max_attempts=1)
        return LLMFactory(self.model, "a-key-of-the-test", api_base=base, retry=policy, **options).build()


def chat(*pieces: Line, ids: tuple[str, str]) -> list[Line]:
    first = call_piece(0, ids[0], name="echo", arguments='{ "text":"a"}')
    second = call_piece(1, ids[1], name="chart", arguments="")
    return answer(*pieces, chunk({"content": "I look."}), first, second, reason="tool_calls")


BLOCKS = [thought("1"), TEXT, use("toolu_1"), thought("2"), {**use("toolu_2"), "name": "chart", "input": {}}]
ITEMS = [rs("1", "Hm."), fc("a"), rs("2"), {**fc("b"), "name": "chart", "arguments": "{}"}]
PARTS = [call("echo", SIGNATURE, text="g"), call("chart")]
FAMILIES = {
    "chat": Family("openai/gpt-4o", chat(ids=("call_o1", LONG)), says(RESULT), check_chat()),
    "responses": Family(
        "openai/gpt-5", responses(*ITEMS), responses(msg(RESULT)), check_responses(ITEMS), "sealed-1"
    ),
    "claude": Family(
        "anthropic/claude-sonnet-4-5",
        claude(*BLOCKS, reason="tool_use"),
        claude({"type": "text", "text": RESULT}),
        check_claude([BLOCKS]),
        "signed 1",
    ),
    "gemini": Family(
        "gemini/gemini-3-pro-preview",
        gemini({"text": "Hm.", "thought": True}, {"text": "I look."}, *PARTS),
        gemini({"text": RESULT}),
        check_gemini(PARTS),
        SIGNATURE,
    ),
    "mistral": Family(
        "mistral/mistral-large-latest",
        chat(chunk({"content": [{"type": "thinking", "thinking": "Hm."}]}), ids=("D681PevKs", "E681PevKs")),
        says(RESULT),
        check_mistral,
    ),
    "deepseek": Family(
        "deepseek/deepseek-reasoner",
        chat(chunk({"reasoning_content": "Thought of DeepSeek."}), ids=("call_0_f3", "call_1_f3")),
        says(RESULT),
        check_chat(thinks=True, images=False),
        "Thought of DeepSeek.",
    ),
}  # fmt: skip
RING = [*FAMILIES, next(iter(FAMILIES))]


def ask(model: Any, session: Any) -> Run:
    agent = ReActAgent("handover", model=model, tools=[echo, chart], result_model=Parcel)
    run = submit(register(agent, replace=True), [ImageBlock(data=PNG), TextBlock(text="look")], session=session)
    run_until_idle()
    run.refresh_from_db()
    return run


@pytest.fixture(autouse=True)
def _loaded(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "ENGINE": None}
    load_litellm()


def test_each_family_reads_the_turns_of_all_others() -> None:
    """One conversation, in which each answers twice."""
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Provider(one.calls, one.result, checker=one.checker))
            for name, one in FAMILIES.items()
        }
        session = None
        for name in [*FAMILIES] * 2:
            with case(name):
                run = ask(FAMILIES[name].at(servers[name]), session)
                assert (run.output, servers[name].refused) == ('{"order":3}', []), run.error
                session = run.session_id
    secrets = {one.secret for one in FAMILIES.values() if one.secret}
    for name, server in servers.items():
        seen = {secret for secret in secrets if secret in str(server.requests[-1])}
        assert (len(server.requests), seen) == (3, {FAMILIES[name].secret} - {""}), name


@pytest.mark.parametrize(("first", "second"), [*pairwise(RING), *pairwise(reversed(RING))])
def test_a_family_continues_the_turn_of_another(first: str, second: str) -> None:
    """Calls of the first model, then of the second, which also ends the turn; a message to each of both afterwards."""
    one, two = FAMILIES[first], FAMILIES[second]
    with (
        Provider(one.calls, BUSY, BUSY, one.result, checker=one.checker) as here,
        Provider(two.calls, two.result, checker=two.checker) as there,
    ):
        models = one.at(here), two.at(there)
        chain = LLMFactory(one.model, "a-key-of-the-test", fallbacks=[models[1]]).build()
        chain.models = models
        session = None
        for model in (chain, *models):
            run = ask(model, session)
            assert (run.output, here.refused, there.refused) == ('{"order":3}', [], []), run.error
            session = run.session_id
    assert [len(here.requests), len(there.requests)] == [4, 3]
    for own, other, secret in ((here, there, one.secret), (there, here, two.secret)):
        assert secret in str(own.requests[-1]) and (not secret or secret not in str(other.requests))
