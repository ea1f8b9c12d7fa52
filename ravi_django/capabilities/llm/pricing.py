"""What a model call cost, in US dollars. An unknown price is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ravi_django.kernel.chat import Usage


def cost_by(prices: Mapping[str, float], usage: Usage) -> float:
    """By one's own prices: `input_cost_per_token`, `output_cost_per_token`, and `cache_read_input_token_cost`
    for the cached part of the input (the input's price when absent). Dollars a token."""
    input_price = prices.get("input_cost_per_token", 0.0)
    cached_price = prices.get("cache_read_input_token_cost", input_price)
    fresh = usage.input_tokens - usage.cached_tokens
    return (
        fresh * input_price
        + usage.cached_tokens * cached_price
        + usage.output_tokens * prices.get("output_cost_per_token", 0.0)
    )


def listed_cost(litellm: Any, model: str, provider_usage: Any) -> float | None:
    """By litellm's price list; None for a model that has no price there."""
    if provider_usage is None or not _is_priced(model, litellm.model_cost):
        return None
    try:
        if not isinstance(provider_usage, litellm.Usage):
            provider_usage = litellm.Usage(**provider_usage.model_dump(exclude_none=True))
        return float(sum(litellm.cost_per_token(model=model, usage_object=provider_usage)))
    except Exception:  # the list raises bare exceptions for what it cannot count
        return None


def _is_priced(model: str, price_list: Mapping[str, Mapping[str, Any]]) -> bool:
    # Asked of the list itself: litellm's lookup calls a local model server over the network, and a listed
    # model without prices comes out at 0 dollars there.
    names = (model, model.partition("/")[2])
    return any("cost" in field for name in names for field in price_list.get(name, ()))
