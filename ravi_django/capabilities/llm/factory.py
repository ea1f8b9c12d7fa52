"""From a model's name to a model client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ravi_django.capabilities.llm.litellm_model import LiteLLMModel
from ravi_django.capabilities.llm.rehearsal import REHEARSAL, RehearsalModel
from ravi_django.kernel.errors import InvalidInputError
from ravi_django.kernel.llm import ChatModel


class LLMFactory:
    """`LLMFactory("gpt-4o", api_key).build()`.

    `model` is any name that litellm knows, or "rehearsal" for the built-in offline one. Without `api_key` litellm
    reads its own variables (`OPENAI_API_KEY`, …). `defaults` go with every call (`temperature=0.2`); these are ours:
    `api_base` (address of the server), `timeout` (seconds, default 120), `prices` (dollars a token:
    `{"input_cost_per_token": …, "output_cost_per_token": …}`, before litellm's list), and for the rehearsal
    model `delay` (seconds a word).

    Raises InvalidInputError when `model` is empty.
    """

    def __init__(self, model: str, api_key: str | None = None, **defaults: Any) -> None:
        if not model or not isinstance(model, str):
            raise InvalidInputError(f'a model is named like "gpt-4o" or "{REHEARSAL}", not {model!r}', field="model")
        self.model = model
        self.defaults = defaults
        self._api_key = api_key

    def __repr__(self) -> str:
        return f"LLMFactory({self.model!r})"

    def build(self) -> ChatModel:
        """A client that serves concurrent calls. Costs nothing: litellm is imported at the first call."""
        if self.model == REHEARSAL:
            return RehearsalModel(**{key: self.defaults[key] for key in ("delay",) if key in self.defaults})
        return LiteLLMModel(self.model, api_key=self._api_key, **self.defaults)


def model_from_env(environ: Mapping[str, str] | None = None, **defaults: Any) -> ChatModel:
    """The model that `RAVI_MODEL` names; the rehearsal model when it is unset or empty."""
    name = (os.environ if environ is None else environ).get("RAVI_MODEL", "").strip()
    return LLMFactory(name or REHEARSAL, **defaults).build()
