"""`RAVI["PRICES"]`: what the site pays for its models, where litellm's list does not know it or knows better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ravi_django.capabilities.llm import pricing
from ravi_django.conf import conf
from ravi_django.kernel import ModelResponse

pricing.use_table(lambda: conf.PRICES)


def priced(response: ModelResponse, name: str) -> ModelResponse:
    """The response with its cost: a model client that knows none is priced by the table, under the name of who
    answered, or the client's own when that is not said: one of its fallbacks may cost something else. Still None when
    the table has no such name."""
    if response.cost is not None:
        return response
    prices = pricing.site_prices(response.model or name)
    if prices is None:
        return response
    return response.model_copy(update={"cost": pricing.cost_by(prices, response.usage)})


def faults(table: Any) -> Iterator[str]:
    """What is wrong with such a table, in words that name the place."""
    if not isinstance(table, Mapping):
        yield f"is {table!r}, not a dict of model name or pattern to prices"
        return
    for model, prices in table.items():
        if not isinstance(model, str) or not isinstance(prices, Mapping):
            yield f"[{model!r}] is no dict of prices under a model's name"
            continue
        for name in sorted(set(prices) - set(pricing.FIELDS), key=str):
            yield f"[{model!r}] has an unknown key {name!r}"
        for name in pricing.FIELDS:
            yield from _faults_of_price(model, name, prices)


def _faults_of_price(model: str, name: str, prices: Mapping[str, Any]) -> Iterator[str]:
    if name not in prices:
        if name in pricing.NEEDED:
            yield f"[{model!r}] has no {name!r}: calls would have no cost"
        return
    price = prices[name]
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
        yield f"[{model!r}][{name!r}] is {price!r}, not dollars a token, 0 or more"
