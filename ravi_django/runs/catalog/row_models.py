"""The models that agents in the database may use: RAVI["MODELS"], else models of known hosts.

litellm reads the host of a call from some names (an ARN has a region), and sends calls of some providers to ports of
this machine (`langgraph/`, `langflow/`). The person who edits an agent must not choose where conversations and keys go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ravi_django.conf import conf
from ravi_django.kernel import InvalidInputError

# Providers of litellm whose host is fixed, or set in the environment of the worker. Ollama's is its own port.
HOSTED = frozenset(
    {
        "ai21", "ai21_chat", "anthropic", "azure", "azure_ai", "azure_text", "bedrock", "cerebras",
        "cloudflare", "codestral", "cohere", "cohere_chat", "dashscope", "databricks", "deepinfra", "deepseek",
        "featherless_ai", "fireworks_ai", "friendliai", "gemini", "github", "gradient_ai", "groq", "huggingface",
        "hyperbolic", "inception", "lambda_ai", "meta_llama", "minimax", "mistral", "moonshot", "morph", "nebius",
        "nlp_cloud", "novita", "nscale", "nvidia_nim", "ollama", "ollama_chat", "openai", "openrouter", "ovhcloud",
        "perplexity", "replicate", "sagemaker", "sagemaker_chat", "sambanova", "scaleway", "snowflake",
        "text-completion-openai", "together_ai", "v0", "vercel_ai_gateway", "vertex_ai", "volcengine", "wandb",
        "watsonx", "xai", "zai",
    }
)  # fmt: skip
_AWS = frozenset({"bedrock", "sagemaker", "sagemaker_chat"})
_AWS_PARTS = re.compile(r"converse|converse_like|invoke|chat_completions|[a-z]{2}(-[a-z]+)+-\d")  # a route, or a region
_NAME = re.compile(r"[\w.:@+~/-]+")


def check(names: Sequence[str]) -> None:
    """`names` are the model and its fallbacks. Raises InvalidInputError for one that a row may not use."""
    for number, name in enumerate(names, -1):
        field = "model" if number < 0 else f"fallbacks.{number}"
        if name and not _NAME.fullmatch(name.strip()):
            allowed = "a name has only letters, digits and . : @ + ~ / - _"
            raise InvalidInputError(f"{field}: {name!r} is not a name of a model: {allowed}", field=field)
        if name and (reason := _refusal(name.strip())):
            raise InvalidInputError(
                f"{field}: {name!r} is not allowed here: {reason}. A developer can allow it in the settings: "
                f"RAVI = {{'MODELS': [{name!r}, …]}}",
                field=field,
            )


def setting_errors(value: Any) -> Iterator[str]:
    """Errors in RAVI["MODELS"]."""
    if value is not None and not isinstance(value, list | tuple):
        yield f" is {value!r}, not a list of names and patterns, or None"
    else:
        yield from (f" has {one!r}, not a name or pattern" for one in value or () if not (one and isinstance(one, str)))


def _refusal(name: str) -> str:
    has_arn = "arn:" in name.lower()
    if conf.MODELS is not None:
        patterns = [one for one in conf.MODELS if fnmatchcase(name, one)]
        # A pattern for many models allows no ARN, which chooses a host.
        return (
            "" if name in conf.MODELS or any("arn:" in one or not has_arn for one in patterns) else "it is not listed"
        )
    provider, *parts, _ = name.split("/") if "/" in name else ("", "")
    if has_arn:
        return "an ARN can choose the host of the call"
    if provider and provider not in HOSTED:
        return f"the host of the provider {provider!r} is not known"
    if "projects" in parts:
        return "it names a resource of a project"
    unknown = [part for part in parts if provider in _AWS and not _AWS_PARTS.fullmatch(part)]
    return f"{unknown[0]!r} is no AWS region" if unknown else ""
