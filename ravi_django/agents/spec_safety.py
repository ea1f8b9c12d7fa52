"""What a spec may not say: whoever edits it must not move the site's keys, nor stop a worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ravi_django.kernel import InvalidInputError

MAX_DEPTH = 50  # objects and lists inside each other

# How a provider generates. Nothing else goes through: litellm reads addresses, credentials, headers, callbacks and
# other models from the same keywords, and those that name a logger's host from `metadata`.
EXTRAS = frozenset(
    {
        "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "min_p", "parallel_tool_calls",
        "presence_penalty", "prompt_cache_key", "reasoning", "repetition_penalty", "safety_identifier", "seed",
        "service_tier", "thinking", "top_a", "top_k", "top_logprobs", "user", "verbosity",
    }
)  # fmt: skip
_ADDRESS = re.compile(r"//|\\|\.\.|[\s?#]")


def check_extras(extras: Mapping[str, Any], field: str) -> None:
    """Raises InvalidInputError, naming the field, for what is no option of generating."""
    for name in extras:
        if name not in EXTRAS:
            raise InvalidInputError(
                f"{field}.{name} is no option of a spec; those are {', '.join(sorted(EXTRAS))}. Where a model is "
                "reached, and with which keys, the settings and the environment say",
                field=f"{field}.{name}",
            )


def check_models(names: Sequence[str]) -> None:
    """`names` are the model and its fallbacks. Raises InvalidInputError for one that is an address."""
    for place, name in enumerate(names, -1):
        if _ADDRESS.search(name.strip()):
            field = "model" if place < 0 else f"fallbacks.{place}"
            raise InvalidInputError(
                f"{field}: {name!r} is no model's name, as provider/model; where a model is reached, the settings and "
                "the environment say",
                field=field,
            )


def refuse_unstorable(spec: Mapping[str, Any]) -> None:
    """Raises InvalidInputError for what the database cannot store, and for what nests too deep to be read safely."""
    for field, text in _texts(spec, "", 0):
        if "\0" in text or (not text.isascii() and text != text.encode(errors="replace").decode()):
            raise InvalidInputError(
                f"{field} holds a NUL character or half a surrogate pair, which the database cannot store", field=field
            )


def _texts(value: Any, place: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping | list | tuple) and depth > MAX_DEPTH:
        field = ".".join(place.split(".")[: 2 if place.startswith(("options", "variables")) else 1])
        raise InvalidInputError(f"{field} is nested more than {MAX_DEPTH} deep; make it flatter", field=field)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield place or "spec", str(key)
            yield from _texts(inner, f"{place}.{key}" if place else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{place}.{number}", depth + 1)
