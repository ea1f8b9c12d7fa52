"""The agents of the bill: models of the stand-in provider, with a price."""

import os

from benchmarks.agents import answering_agent
from ravi_django import register
from ravi_django.integrations.llm import FallbackModel, LLMFactory
from ravi_django.kernel import RetryPolicy

PRICES = {"input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6}


def model(name: str) -> object:
    url = os.environ.get("BENCH_MODEL_URL")
    retry = RetryPolicy(max_attempts=5, base_s=0.1)
    return LLMFactory(name, api_key="sk-of-the-bench-server", api_base=url, prices=PRICES, retry=retry).build()


register(answering_agent("bench-bill", model("openai/bench")))
register(answering_agent("bench-bill-fallback", FallbackModel([model("openai/bench"), model("openai/second")])))  # type: ignore[list-item]
