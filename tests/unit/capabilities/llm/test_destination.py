"""No option of a call says where it goes, or with which keys."""

from __future__ import annotations

import pytest

from ravi_django.agents.spec_safety import EXTRAS
from ravi_django.capabilities.llm import LiteLLMModel
from ravi_django.capabilities.llm.destination import refuse_destinations
from ravi_django.kernel import GenerationOptions, InvalidInputError, RunMeta
from ravi_django.kernel.chat import ChatMessage
from tests.support.openai_server import OpenAIServer


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["base_url", "extra_headers", "Custom-LLM-Provider", "api_version", "langfuse_host"])
async def test_a_calls_options_do_not_move_it(name: str) -> None:
    with OpenAIServer() as server, OpenAIServer() as other:
        address = other.base_url
        model = LiteLLMModel("openai/m", api_key="sk-site", api_base=server.base_url)
        stream = model.stream(
            [ChatMessage.of("user", "hi")], GenerationOptions(extra={name: address}), RunMeta(run_id="r")
        )

        with pytest.raises(InvalidInputError) as caught:
            await anext(stream)

        assert caught.value.field == f"options.extra.{name}"
        assert other.requests == server.requests == []


@pytest.mark.parametrize(
    "name",
    [
        "api_base",
        "model_list",
        "fallbacks",
        "success_callback",
        "callbacks",
        "custom_llm_provider",
        "headers",
        "client",
        "use_litellm_proxy",
        "litellm_credential_name",
        "vertex_location",
        "aws_region_name",
        "organization",
        "api_key",
        "ssl_verify",
        "s3_bucket_name",
        "turn_off_message_logging",
        "mock_response",
        "azure_ad_token_provider",
    ],
)
def test_every_such_word_of_the_client_is_known(name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        refuse_destinations({name: "x"})


def test_a_logger_is_not_moved_by_metadata() -> None:
    refuse_destinations({"metadata": {"trace_user_id": "u1"}})
    with pytest.raises(InvalidInputError, match=r"metadata\.langfuse_host"):
        refuse_destinations({"metadata": {"langfuse_host": "https://evil.example"}})


def test_what_a_spec_may_say_goes_through() -> None:
    refuse_destinations(dict.fromkeys([*EXTRAS, "web_search_options", "modalities", "prediction"], 1))
