"""Building model clients: settings, keys, where calls go, and the late import of litellm."""

import json
import logging
import os
import pickle
import subprocess
import sys

import pytest

from ravi_django.agents.spec.spec import EXTRAS
from ravi_django.calls.llm import LiteLLMModel, LLMFactory, RehearsalModel, model_from_env
from ravi_django.calls.llm.errors import redact, redact_logs
from ravi_django.calls.llm.litellm_model import refuse_destinations
from ravi_django.kernel import GenerationOptions, InvalidInputError, RunMeta
from ravi_django.kernel.chat import ChatMessage
from tests.support import forks
from tests.support.anthropic_server import AnthropicServer
from tests.support.cases import case, refused
from tests.support.openai_server import OpenAIServer
from tests.support.patience import BOUND_S


def test_what_a_factory_builds(monkeypatch):
    model = LLMFactory("gpt-4o", "k", timeout=5, prices={"input_cost_per_token": 1.0}, temperature=0.5).build()
    assert isinstance(model, LiteLLMModel)
    assert (model.name, model.timeout, model.params) == ("gpt-4o", 5, {"temperature": 0.5})
    # rehearsal by name
    model = LLMFactory("rehearsal", delay=0, temperature=0.5).build()
    assert isinstance(model, RehearsalModel)
    assert (model.name, model.delay) == ("rehearsal", 0)
    # without a model in the environment
    for environ, name in [({}, "rehearsal"), ({"RAVI_MODEL": " "}, "rehearsal")]:
        assert model_from_env(environ).name == name, environ

    monkeypatch.setenv("RAVI_MODEL", "anthropic/claude-x")
    assert model_from_env().name == "anthropic/claude-x"
    # a server of ones own in the environment
    environ = {"RAVI_MODEL": "openai/x", "RAVI_MODEL_API_BASE": "http://h/v1", "RAVI_MODEL_API_KEY": "key-0123"}
    model = model_from_env(environ)
    assert (model.name, model._api_base, model._api_key) == ("openai/x", "http://h/v1", "key-0123")
    # a model needs a name
    for name in ["", None]:
        with case(name), pytest.raises(InvalidInputError, match="rehearsal"):
            LLMFactory(name)


def test_the_key_stays_in_the_process(caplog):
    caplog.set_level(logging.DEBUG)
    factory = LLMFactory("gpt-4o", "sk-abc-0123456789")
    model = factory.build()
    assert "sk-abc" not in f"{factory!r} {factory} {model!r} {model} {caplog.text}"
    for holder in (model, factory, model._keys):
        with pytest.raises(TypeError):
            pickle.dumps(holder)


def test_keys_are_redacted(monkeypatch):
    # parameters that hold keys are kept apart
    headers = {"Authorization": "Bearer abc-0123456789", "Accept": "application/json"}
    model = LLMFactory("bedrock/x", aws_secret_access_key="aws-0123456789", extra_headers=headers, top_k=3).build()
    assert model.params == {"top_k": 3}
    said = "got aws-0123456789 and Bearer abc-0123456789 (abc-0123456789), not application/json"
    assert redact(said) == "got [key] and [key] ([key]), not application/json"
    # a key is known as long as its client lives
    model = LLMFactory("gpt-4o", "Zq8/plain-0123456789").build()
    assert redact("Zq8/plain-0123456789") == "[key]"
    del model
    assert redact("Zq8/plain-0123456789") == "Zq8/plain-0123456789"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Zq9/plain-0123456789")
    monkeypatch.setenv("OURS_API_KEY", "Zq9/other-0123456789")
    assert redact("Zq9/plain-0123456789 Zq9/other-0123456789") == "[key] [key]"


def test_the_log_lines_of_the_clients_are_redacted(caplog):
    caplog.set_level(logging.DEBUG, "httpx")
    redact_logs()
    model = LLMFactory("gpt-4o", "Zq7/plain-0123456789").build()
    log = logging.getLogger("httpx")

    log.info("HTTP Response: %s", {"x-echo": "Zq7/plain-0123456789"})
    try:
        raise ValueError("in Zq7/plain-0123456789")
    except ValueError:
        log.exception("failed")
    log.info("plain %s", "words")

    assert "plain-0123456789" not in caplog.text
    assert "'x-echo': '[key]'" in caplog.text and "ValueError: in [key]" in caplog.text and "plain words" in caplog.text
    assert model


def test_litellm_is_loaded_late_and_quietly():
    # building a model leaves litellm unimported
    code = (
        "import sys; from ravi_django.calls import llm; from ravi_django.integrations.llm import LLMFactory\n"
        "for factory in (llm.LLMFactory, LLMFactory): factory('gpt-4o', 'k').build()\n"
        "print('litellm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    # the first call does not stall the event loop
    code = (
        "import asyncio, sys, threading\n"
        "from ravi_django.calls.llm import loading\n"
        "where = []\n"
        "load = loading._import\n"
        "loading._import = lambda: (where.append(threading.current_thread() is threading.main_thread()), load())[1]\n"
        "async def main():\n"
        "    both = await asyncio.gather(loading.aload_litellm(), loading.aload_litellm())\n"
        "    print(where, both[0] is both[1] is sys.modules['litellm'])\n"
        "asyncio.run(main())"
    )
    done = forks.run(["-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[False] True"


# In a process of its own: what litellm fetches, it fetches once.
CALL = """
import asyncio, json, sys
name, base = sys.argv[1:]
connected = []
def hook(event, args):
    if event == "socket.connect":
        connected.append("{}:{}".format(*args[1][:2]))
    elif event == "socket.getaddrinfo":
        connected.append("{}:{}".format(*args[:2]))
sys.addaudithook(hook)
from ravi_django.calls.llm import LLMFactory, close_clients
from ravi_django.kernel import ChatMessage, GenerationOptions, RunMeta
async def main():
    beta = {"anthropic-beta": "context-1m-2025-08-07"}  # litellm has a list of these to look them up in
    model = LLMFactory(name, "a-test-key", api_base=base, extra_headers=beta).build()
    stream = model.stream([ChatMessage.of("user", "hi")], GenerationOptions(), RunMeta(run_id="r"))
    *_, response = [event async for event in stream]
    await close_clients()
    return response.text
said = asyncio.run(main())
print(json.dumps([said, [one for one in connected if one not in base]]))
"""


@pytest.mark.parametrize(
    ("server", "name"), [(AnthropicServer, "anthropic/claude-sonnet-4-5"), (OpenAIServer, "openai/gpt-4o")]
)
def test_a_call_connects_to_its_provider_alone(server, name):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LITELLM_")}
    with server() as running:
        command = ["-c", CALL, name, running.base_url]
        done = forks.run(command, env=environment, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout.splitlines()[-1]), done.stderr) == (["Hello from the test server.", []], "")


@pytest.mark.parametrize("name", ["base_url", "extra_headers", "Custom-LLM-Provider", "api_version", "langfuse_host"])
async def test_a_calls_options_do_not_move_it(name: str) -> None:
    with OpenAIServer() as server, OpenAIServer() as other:
        address = other.base_url
        model = LiteLLMModel("openai/m", api_key="sk-site", api_base=server.base_url)
        stream = model.stream(
            [ChatMessage.of("user", "hi")], GenerationOptions(extra={name: address}), RunMeta(run_id="r")
        )
        with refused(f"options.extra.{name}"):
            await anext(stream)
        assert other.requests == server.requests == []


def test_every_word_of_the_client_that_moves_a_call_is_known() -> None:
    for name in (
        "api_base model_list fallbacks success_callback callbacks custom_llm_provider headers client "
        "use_litellm_proxy litellm_credential_name vertex_location aws_region_name organization api_key "
        "ssl_verify s3_bucket_name turn_off_message_logging mock_response azure_ad_token_provider"
    ).split():
        with case(name), pytest.raises(InvalidInputError, match=name):
            refuse_destinations({name: "x"})
    # a logger is not moved by metadata
    refuse_destinations({"metadata": {"trace_user_id": "u1"}})
    with pytest.raises(InvalidInputError, match=r"metadata\.langfuse_host"):
        refuse_destinations({"metadata": {"langfuse_host": "https://evil.example"}})
    # what a spec may say goes through
    refuse_destinations(dict.fromkeys([*EXTRAS, "web_search_options", "modalities", "prediction"], 1))
