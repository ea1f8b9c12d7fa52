"""Wrong names of models and missing keys, before a call. litellm's price file is read as data: litellm is not imported,
which takes seconds."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from ravi_django.calls.rehearsal.model import REHEARSAL
from ravi_django.kernel.errors import ModelError

# The variables that may hold the key of a provider. Errors name the first.
KEYS: dict[str, tuple[str, ...]] = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "azure": ("AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN", "AZURE_CLIENT_ID", "AZURE_USERNAME"),
    "mistral": ("MISTRAL_API_KEY", "MISTRAL_AZURE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "xai": ("XAI_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
    "openrouter": ("OPENROUTER_API_KEY", "OR_API_KEY"),
}
_KNOWN_PARTS = re.compile(r"^(?:gpt-image|amazon_nova)|ft:gpt-(?:3\.5-turbo|4)|:[0-9a-f]{64}$")  # of litellm's own code


class Fault(NamedTuple):
    """An error of a model's name or settings, and the fix."""

    what: str
    fix: str
    error: str  # the type of the error that a call raises

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}" if self.fix.endswith("?") else f"{self.what}: {self.fix}"

    def as_error(self) -> ModelError:
        return ModelError(str(self), type=self.error, status=401 if self.error == "MissingKeyError" else 404)


def unknown(name: str) -> Fault | None:
    """The fault of a name that litellm does not know, or whose provider is one that it knows, misspelt."""
    models, rules = _listed()
    litellm = sys.modules.get("litellm")  # the site may have given it more names
    known = (models, *(getattr(litellm, of, ()) for of in ("model_cost", "model_alias_map")))
    if not models or any(name in names for names in known):
        return None
    if "/" in name:
        return _misspelt(name, getattr(litellm, "provider_list", ()))
    if f"vertex_ai/{name}" in models or _KNOWN_PARTS.search(name) or _by_rule(name, rules):
        return None
    close = [full for full in models if full.endswith(f"/{name}")]
    close = close or get_close_matches(name.lower(), [*models, REHEARSAL], 1)
    fix = f"Did you mean {close[0]!r}?" if close else f"write its provider before it, for example 'openai/{name}'"
    return Fault(f"Unknown model {name!r}", fix, "UnknownModelError")


def _misspelt(name: str, more: Collection[str]) -> Fault | None:
    provider, _, model = name.partition("/")
    known = {*KEYS, *more, *(row[0] for row in _listed()[0].values())}
    close = None if provider in known else get_close_matches(provider, known, 1, 0.8)
    if not close:
        return None
    fix = f"Did you mean '{close[0]}/{model}'?"
    return Fault(f"Unknown provider {provider!r} of the model {name!r}", fix, "UnknownModelError")


def doubt(name: str) -> str:
    """What is odd about a name that only a rule for new names knows: it may be a new model or a typo."""
    models, rules = _listed()
    if "/" in name or name in models or not _by_rule(name, rules):
        return ""
    close = get_close_matches(name, models, 1)
    return f"the model {name!r} is not in litellm's price list" + (f". Did you mean {close[0]!r}?" if close else "")


def no_key(name: str, variables: Collection[str] | None = None) -> Fault | None:
    """The fault of a model whose provider is in KEYS, if none of its `variables` is set (None: in this process)."""
    known = KEYS.get(_provider_of(name), ())
    if not known or not set(known).isdisjoint(set_variables() if variables is None else variables):
        return None
    return no_key_in(name, known[0])


def no_key_in(name: str, variables: str) -> Fault:
    fix = f"set {variables} in the environment of the processes that run agents"
    return Fault(f"model {name} has no API key", fix, "MissingKeyError")


def set_variables() -> list[str]:
    """The variables of KEYS that are set here, or in the `.env` file that litellm's import reads."""
    values: dict[str, str | None] = dict(os.environ)
    folders = _folder().parents if os.environ.get("LITELLM_MODE", "DEV") == "DEV" else ()
    files = [file for folder in folders if (file := folder / ".env").is_file()]
    if files:
        from dotenv import dotenv_values  # litellm requires it

        values = {**dotenv_values(files[0]), **values}
    return sorted({name for names in KEYS.values() for name in names if (values.get(name) or "").strip()})


def has_price(name: str) -> bool:
    """Whether litellm's list has a price for the model."""
    models, _ = _listed()
    return any(models.get(one, ("", False))[1] for one in (name, name.partition("/")[2]))


def _provider_of(name: str) -> str:
    if "/" in name:
        return name.partition("/")[0]
    models, rules = _listed()
    return models.get(name, ("",))[0] or _by_rule(name, rules)


def _by_rule(name: str, rules: Any) -> str:
    return next((provider for pattern, provider in rules if pattern.search(name)), "")


def _folder() -> Path:
    spec = find_spec("litellm")
    return Path(spec.origin).parent if spec and spec.origin else Path()  # without litellm: no folder of it


@lru_cache(1)
def _listed() -> tuple[dict[str, tuple[str, bool]], list[tuple[re.Pattern[str], str]]]:
    """The models of the price file, each with its provider and whether it has a price, and the rules for new names.
    Both are empty without a file of this form: then nothing is wrong with any name."""
    try:
        rows: dict[str, Any] = from_json((_folder() / _FILE).read_bytes())
        rules = [(rule["pattern"], rule["model_info"]) for rule in rows.pop(_RULES, {"rules": ()})["rules"]]
        routes = [(re.compile(pattern, re.I), info[_BY]) for pattern, info in rules if _BY in info]
        full = {name: rows.get(row.get("alias_of"), row) for name, row in rows.items()}
        models = {name: (str(row.get(_BY, "")), any("cost" in field for field in row)) for name, row in full.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, re.error):
        return {}, []
    return models, routes


_FILE = "model_prices_and_context_window_backup.json"
_RULES, _BY = "fallback_generalizations", "litellm_provider"
