"""Where a model is reached, and as whom: the client's own business, which no call's options may change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ravi_django.kernel.errors import InvalidInputError
from ravi_django.kernel.secrets import is_secret

# The keywords of litellm that name a host, a credential, another model, or code to be told of the call.
_NAMES = frozenset(
    {
        "model", "messages", "model_list", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks",
        "custom_llm_provider", "deployment_id", "client", "shared_session", "api_version", "organization", "project",
        "mock_response", "preset_cache_key", "input_cost_per_token", "output_cost_per_token", "hf_model_name",
        "litellm_params", "litellm_params_template", "model_info", "region_name", "aws_access_key_id",
        "aws_session_name", "aws_profile_name", "aws_role_name", "aws_sts_endpoint", "cache",
    }
)  # fmt: skip
_PARTS = re.compile(
    r"(?:^|_)(?:base|url|uri|host|hosts|endpoint|endpoints|headers?|callbacks?|proxy|proxies|proxied|router"
    r"|http|ssl|tls|cert|certificate|region|location|tenant|logger|logging|azure|vertex|aws|langfuse|langsmith"
    r"|fallback|fallbacks|oci|s3|gcs|arize|posthog|humanloop|gcp|bucket)(?:$|_)"
)
_NESTED = ("metadata", "litellm_metadata")  # loggers read their host and key here


def refuse_destinations(extra: Mapping[str, Any], field: str = "options.extra") -> None:
    """Raises InvalidInputError, naming the field, for a call's option that says where it goes or with which keys."""
    for name, value in extra.items():
        plain = str(name).lower().replace("-", "_")
        if plain in _NAMES or _PARTS.search(plain) or is_secret(plain):
            raise InvalidInputError(
                f"{field}.{name} would say where the call goes, or as whom; say it to the model itself, "
                f"LiteLLMModel(…, {plain}=…)",
                field=f"{field}.{name}",
            )
        if plain in _NESTED and isinstance(value, Mapping):
            refuse_destinations(value, f"{field}.{name}")
