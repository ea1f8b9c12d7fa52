"""What a model call cost, in US dollars. An unknown price is None, never 0.

A model's own `prices` come first, then the site's table, then litellm's list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ravi_django.kernel.chat import Usage

Prices = Mapping[str, float]

NEEDED = ("input_cost_per_token", "output_cost_per_token")
FIELDS = (
    *NEEDED,
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
)

_table: Callable[[], Mapping[str, Prices] | None] = dict


def use_table(table: Callable[[], Mapping[str, Prices] | None]) -> None:
    """Let calls be priced by the table that `table()` gives at the time: model name or pattern → prices."""
    global _table
    _table = table


def site_prices(*names: str) -> Prices | None:
    """The table's prices for a model that goes by these names: an exact name first, then the first pattern that fits
    (`*`, `?`, as in file names). None when it has none."""
    table = _table() or {}
    for name in names:
        if name in table:
            return table[name]
    return next(
        (prices for pattern, prices in table.items() if any(fnmatchcase(name, pattern) for name in names)), None
    )


def cost_by(prices: Prices, usage: Usage, *, cache_writes: int = 0) -> float | None:
    """By prices in dollars a token; None where one is missing for tokens that were used.

    Cached input costs `cache_read_input_token_cost`, input that was written to the provider's cache (`cache_writes`
    tokens) `cache_creation_input_token_cost`; both the input's price when absent.
    """
    input_price = prices.get("input_cost_per_token")
    cost = 0.0
    for tokens, price in (
        (usage.input_tokens - usage.cached_tokens - cache_writes, input_price),
        (usage.cached_tokens, prices.get("cache_read_input_token_cost", input_price)),
        (cache_writes, prices.get("cache_creation_input_token_cost", input_price)),
        (usage.output_tokens, prices.get("output_cost_per_token")),
    ):
        if tokens > 0:
            if price is None:
                return None
            cost += tokens * price
    return cost


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


def listed_prices(model: str) -> Prices | None:
    """litellm's prices for a model, once it is imported; None for one that has none there."""
    listed: Any = getattr(sys.modules.get("litellm"), "model_cost", None) or {}
    for name in (model, model.partition("/")[2]):
        prices = listed.get(name) or {}
        if all(isinstance(prices.get(field), int | float) for field in NEEDED):
            return {field: prices[field] for field in FIELDS if isinstance(prices.get(field), int | float)}
    return None


def _is_priced(model: str, price_list: Mapping[str, Mapping[str, Any]]) -> bool:
    # Asked of the list itself: litellm's lookup calls a local model server over the network, and a listed
    # model without prices comes out at 0 dollars there.
    names = (model, model.partition("/")[2])
    return any("cost" in field for name in names for field in price_list.get(name, ()))
