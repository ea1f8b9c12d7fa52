"""The cost of a model call in US dollars. An unknown price is None, never 0.

A model's own `prices` come first, then the site's table, then litellm's list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ravi_django.calls.llm import names
from ravi_django.kernel.chat import Usage
from ravi_django.kernel.errors import UnpricedModelError

Prices = Mapping[str, float]

NEEDED = ("input_cost_per_token", "output_cost_per_token")
FIELDS = (*NEEDED, "cache_read_input_token_cost", "cache_creation_input_token_cost")

_table: Callable[[], Mapping[str, Prices] | None] = dict
_unknown: Callable[[], str | float | None] = lambda: None  # noqa: E731


def use_table(table: Callable[[], Mapping[str, Prices] | None], unknown: Callable[[], str | float | None]) -> None:
    """Set the site's price table: `table()` returns model name or pattern → prices. `unknown()` is the price of a model
    without one in dollars per million tokens, or "allow"."""
    global _table, _unknown
    _table, _unknown = table, unknown


def site_prices(*names: str) -> Prices | None:
    """The table's prices for a model with these names: an exact name first, then the first matching pattern (`*`, `?`).
    None if there is none."""
    table = _table() or {}
    for name in names:
        if name in table:
            return table[name]
    return next(
        (prices for pattern, prices in table.items() if any(fnmatchcase(name, pattern) for name in names)), None
    )


def prices_of(model: Any, answered_by: str = "") -> Prices | None:
    """The prices of a model client; `answered_by` is the name that its provider reported. Without litellm's import its
    list is unknown."""
    known_as = [name for name in (model.name, answered_by) if name]
    listed = getattr(model, "listed_as", model.name)
    return getattr(model, "prices", None) or site_prices(*known_as) or listed_prices(listed) or unknown_prices()


def unknown_prices() -> Prices | None:
    """The site's prices for a model without a price."""
    price = _unknown()
    return None if price is None or isinstance(price, str) else dict.fromkeys(NEEDED, price / 1_000_000)


def unpriced(model: Any) -> str:
    """The name of the model, or of one in a fallback list, if the cost of its calls will not be known; else empty."""
    if parts := getattr(model, "models", ()):
        return next(filter(None, map(unpriced, parts)), "")
    if getattr(model, "reports_cost", False) or prices_of(model) is not None or _unknown() == "allow":
        return ""
    return "" if names.has_price(getattr(model, "listed_as", model.name)) else str(model.name)


def check_priced(model: Any) -> None:
    """Raises UnpricedModelError."""
    if name := unpriced(model):
        raise UnpricedModelError(name)


def cost_by(prices: Prices, usage: Usage, *, cache_writes: int = 0) -> float | None:
    """The cost by prices in dollars per token; None if the price of used tokens is missing.

    Cached input costs `cache_read_input_token_cost`, input that was written to the provider's cache (`cache_writes`
    tokens) `cache_creation_input_token_cost`; both default to the input's price.
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
    """The cost by litellm's price list; None for a model without a price there."""
    if provider_usage is None or not _is_priced(model, litellm.model_cost):
        return None
    try:
        if not isinstance(provider_usage, litellm.Usage):
            fields = (
                provider_usage if isinstance(provider_usage, dict) else provider_usage.model_dump(exclude_none=True)
            )
            provider_usage = litellm.Usage(**fields)
        return float(sum(litellm.cost_per_token(model=model, usage_object=provider_usage)))
    except Exception:  # litellm raises bare exceptions
        return None


def listed_prices(model: str) -> Prices | None:
    """litellm's prices for a model, if litellm is imported and has them; else None."""
    listed: Any = getattr(sys.modules.get("litellm"), "model_cost", None) or {}
    for name in (model, model.partition("/")[2]):
        prices = listed.get(name) or {}
        if all(isinstance(prices.get(field), int | float) for field in NEEDED):
            return {field: prices[field] for field in FIELDS if isinstance(prices.get(field), int | float)}
    return None


def _is_priced(model: str, price_list: Mapping[str, Mapping[str, Any]]) -> bool:
    # litellm's own function calls local model servers, and returns 0 dollars for a listed model without prices.
    names = (model, model.partition("/")[2])
    return any("cost" in field for name in names for field in price_list.get(name, ()))
