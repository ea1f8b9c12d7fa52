"""From a model's name to a model client."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from ravi_django.calls.llm.fallback import FALLBACK_AFTER_S, FALLBACK_TOTAL_S, FallbackModel
from ravi_django.calls.llm.litellm_model import LiteLLMModel
from ravi_django.calls.rehearsal.model import REHEARSAL, RehearsalModel
from ravi_django.kernel.checks import did_you_mean
from ravi_django.kernel.errors import InvalidInputError
from ravi_django.kernel.llm import ChatModel, GenerationOptions, RetryPolicy
from ravi_django.kernel.secrets import holds_secret


class LLMFactory:
    """`LLMFactory("gpt-4o", api_key).build()`.

    `model` is any name that litellm knows, or "rehearsal" for the built-in offline model. Without `api_key` litellm
    reads its own variables (`OPENAI_API_KEY`, …). `fallbacks` are tried in order if it fails: names (with the same
    settings, and keys from litellm's variables), other factories or models. See FallbackModel, also for `fallback_on`,
    `fallback_after` and `fallback_total` (seconds). `retry` is the policy for failed calls.

    `defaults` are sent with every call (`temperature=0.2`), except these: `api_base` (URL of the server), `timeout`
    (seconds, default 120), `prices` (dollars per token: `{"input_cost_per_token": …, "output_cost_per_token": …}`;
    they override `RAVI["PRICES"]` and litellm's list), `context_window` (tokens), `dialect` (see LiteLLMModel), and for
    the rehearsal model `delay` (seconds per word). The key has no repr and is not pickled, stored or logged.

    Raises InvalidInputError if `model` is empty, a fallback is invalid, or a default looks like another one misspelt.
    Other names are options of the provider.
    """

    def __init__(
        self,
        model: str,
        api_key: str | None = None,
        *,
        fallbacks: Sequence[Any] = (),
        fallback_on: Collection[str | int] = (),
        fallback_after: float | timedelta = FALLBACK_AFTER_S,
        fallback_total: float | timedelta = FALLBACK_TOTAL_S,
        retry: RetryPolicy | None = None,
        **defaults: Any,
    ) -> None:
        if not model or not isinstance(model, str):
            raise InvalidInputError(f'model must be "gpt-4o", "{REHEARSAL}" or the like, not {model!r}', field="model")
        if api_key is not None and not api_key.strip():
            message = "api_key is empty, and litellm would take the key of the environment: leave it out for that"
            raise InvalidInputError(message, field="api_key")
        _check_names(defaults)
        self.model = model
        self.fallbacks = (fallbacks,) if isinstance(fallbacks, str) else tuple(fallbacks)
        self.fallback_on, self.fallback_after = frozenset(fallback_on), fallback_after
        self.fallback_total = fallback_total
        self.retry = retry
        self.defaults = defaults
        self._api_key = api_key

    def __repr__(self) -> str:
        return f"LLMFactory({self.model!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a model factory holds a key and cannot be pickled; create it where it is used")

    def build(self) -> ChatModel:
        """A client that serves concurrent calls. litellm is imported only at the first call."""
        first = self._build_first()
        if not self.fallbacks:
            return first
        models = [first, *map(self._build_fallback, self.fallbacks)]
        return FallbackModel(
            models,
            retry=self.retry,
            fallback_on=self.fallback_on,
            fallback_after=self.fallback_after,
            fallback_total=self.fallback_total,
        )

    def _build_first(self) -> ChatModel:
        if self.model == REHEARSAL:
            return RehearsalModel(**{key: self.defaults[key] for key in ("delay",) if key in self.defaults})
        return LiteLLMModel(self.model, api_key=self._api_key, retry=self.retry, **self.defaults)

    def _build_fallback(self, fallback: Any) -> ChatModel:
        if isinstance(fallback, str):
            options = {
                key: value
                for key, value in self.defaults.items()
                if key not in _OF_ONE_SERVER
                and not holds_secret(key, value)  # never send one provider's key to another
            }
            return LLMFactory(fallback, **options).build()
        if isinstance(fallback, LLMFactory):
            return fallback.build()
        if hasattr(fallback, "stream") and hasattr(fallback, "name"):
            model: ChatModel = fallback
            return model
        raise InvalidInputError(
            f"a fallback must be a model's name, an LLMFactory or a ChatModel, not {fallback!r}", field="fallbacks"
        )


# Options that litellm and the built-in model know; a provider may have others.
_OPTIONS = (
    *(
        "api_base",
        "api_version",
        "base_model",
        "context_window",
        "delay",
        "dialect",
        "extra_body",
        "extra_headers",
        "frequency_penalty",
    ),
    *("max_completion_tokens", "max_retries", "n", "organization", "parallel_tool_calls", "presence_penalty", "prices"),
    *("private_addresses", "seed", "service_tier", "thinking", "timeout", "top_k", "top_logprobs", "verbosity"),
    *GenerationOptions.model_fields,
)
_PARAMETERS = ("model", "api_key", "fallbacks", "fallback_on", "fallback_after", "fallback_total", "retry")


def _check_names(defaults: Mapping[str, Any]) -> None:
    for name in defaults:
        if name not in _OPTIONS and (near := did_you_mean(name, [*_OPTIONS, *_PARAMETERS], 0.8)):
            raise InvalidInputError(f"LLMFactory has no option {name!r}{near}", field=name)


_OF_ONE_SERVER = frozenset({"api_base", "base_model", "cache_key", "dialect", "prices", "context_window"})


def model_from_env(environ: Mapping[str, str] | None = None, **defaults: Any) -> ChatModel:
    """The model named by `RAVI_MODEL`; the rehearsal model if it is unset or empty. `RAVI_MODEL_API_BASE` and
    `RAVI_MODEL_API_KEY` are for a custom server: `RAVI_MODEL=openai/its-name`."""
    variables = os.environ if environ is None else environ
    name, api_base, api_key = (variables.get(f"RAVI_MODEL{end}", "").strip() for end in ("", "_API_BASE", "_API_KEY"))
    if api_base:
        defaults = {"api_base": api_base, **defaults}
    return LLMFactory(name or REHEARSAL, api_key or None, **defaults).build()
