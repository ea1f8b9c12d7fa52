"""Public name of `ravi_django.calls.llm`: `from ravi_django.integrations.llm import LLMFactory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ravi_django.calls.llm import FallbackModel, LiteLLMModel, LLMFactory, RehearsalModel, model_from_env
    from ravi_django.kernel import RetryPolicy

__all__ = ["FallbackModel", "LLMFactory", "LiteLLMModel", "RehearsalModel", "RetryPolicy", "model_from_env"]


def __getattr__(name: str) -> Any:
    if name == "RetryPolicy":
        from ravi_django.kernel import RetryPolicy

        return RetryPolicy
    if name in __all__:
        from ravi_django.calls import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
