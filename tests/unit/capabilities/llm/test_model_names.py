"""Faults of a model's name and key, before litellm is imported."""

import json
import re
import subprocess
import sys

import pytest

from ravi_django.calls.llm import LLMFactory
from ravi_django.calls.llm.names import KEYS

ALL = {name for names in KEYS.values() for name in names}


def fault_of(name, *keys, **options):
    fault = LLMFactory(name, **options).build().fault(keys)
    return fault and str(fault)


@pytest.mark.parametrize(("name", "suggestion"), [
    ("gpt4o-mini", "Did you mean 'gpt-4o-mini'?"),
    ("GPT-4o", "Did you mean 'gpt-4o'?"),
    ("rehersal", "Did you mean 'rehearsal'?"),
    ("mistral-small-latest", "Did you mean 'mistral/mistral-small-latest'?"),
    ("opnai/gpt-4o-mini", "Did you mean 'openai/gpt-4o-mini'?"),
    ("our-model-7", "write its provider before it, for example 'openai/our-model-7'"),
])  # fmt: skip
def test_an_unknown_name_has_a_suggestion(name, suggestion):
    assert re.match(f"Unknown (model|provider '.*' of the model) '{name}'", fault_of(name, *ALL))
    assert fault_of(name, *ALL).endswith(suggestion)
    assert fault_of(name, api_base="http://127.0.0.1:1/v1") is None
    assert fault_of(name, *ALL, custom_llm_provider="openai") is None


@pytest.mark.parametrize("name", [
    "gpt-4o", "claude-haiku-latest", "claude-opus-99-1", "ft:gpt-4o:us", "gemini-2.5-flash", "openai/any", "ours/any",
])  # fmt: skip
def test_names_of_litellm_its_rules_and_any_name_with_a_provider_are_known(name):
    assert fault_of(name, *ALL) is None


def test_a_name_that_only_a_rule_knows_is_doubted_unless_it_has_a_price():
    wanted = "the model 'claude-sonet-4-5' is not in litellm's price list. Did you mean 'claude-sonnet-4-5'?"
    assert LLMFactory("claude-sonet-4-5").build().doubt() == wanted
    prices = {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
    for name, options in (("claude-sonnet-4-5", {}), ("openai/any", {}), ("claude-sonet-4-5", {"prices": prices})):
        assert LLMFactory(name, **options).build().doubt() == ""
    arn = "bedrock/arn:aws:bedrock:us-east-1:1:application-inference-profile/a"
    assert "Name it: base_model=" in LLMFactory(arn).build().doubt()
    assert LLMFactory(arn, base_model="bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0").build().doubt() == ""


def test_a_key_is_looked_for_in_the_variables_of_ten_providers():
    names = {"claude-sonnet-4-5": "ANTHROPIC_API_KEY", "azure/ours": "AZURE_API_KEY", "gemini/x": "GEMINI_API_KEY"}
    for name, variable in names.items():
        assert f"model {name} has no API key: set {variable} in" in fault_of(name, *(ALL - set(KEYS[of(name)])))
        assert fault_of(name, variable) is None
        assert fault_of(name, api_key="its-key") is None
    assert fault_of("gemini/x", "GOOGLE_API_KEY") is None
    assert fault_of("ollama/llama3") is None  # not in the table
    assert len({prefix.removesuffix("_chat") for prefix in KEYS}) == 10


def of(name):
    return name.partition("/")[0] if "/" in name else "anthropic"


def test_a_call_that_would_fail_imports_nothing_and_a_fallback_is_asked():
    code = """
import asyncio, json, os, sys
from ravi_django.calls.llm import LLMFactory
from ravi_django.kernel import ChatMessage, GenerationOptions, ModelError, RunMeta
async def call(model):
    events = model.stream([ChatMessage.of("user", "hi")], GenerationOptions(), RunMeta(run_id="r"))
    try:
        return [event async for event in events][-1].message.text
    except ModelError as error:
        return [error.type, error.status, str(error)]
os.environ["OPENAI_API_KEY"] = " "
models = [LLMFactory("gpt-4o").build(), LLMFactory("gpt4o").build()]
models.append(LLMFactory("gpt4o", fallbacks=["rehearsal"]).build())
answers = [asyncio.run(call(model)) for model in models]
schema = asyncio.run(models[0].supports_schema())
models.append(LLMFactory("gpt4o", fallbacks=[LLMFactory("gpt-4o", "a-key")]).build())
print(json.dumps([answers, schema, [model.needs_library() for model in models], "litellm" in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (no_key, unknown, answered), schema, needs, imported = json.loads(done.stdout)
    assert no_key[:2] == ["MissingKeyError", 401] and "set OPENAI_API_KEY" in no_key[2]
    assert unknown == ["UnknownModelError", 404, "Unknown model 'gpt4o'. Did you mean 'gpt-4o'?"]
    assert answered.startswith("[rehearsal] ")
    assert (schema, needs, imported) == (False, [False, False, False, True], False)
