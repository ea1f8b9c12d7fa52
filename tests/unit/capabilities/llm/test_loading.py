"""The lazy import of litellm: nothing is fetched that nobody asked for."""

from __future__ import annotations

import json
import os

import pytest

from tests.support import forks
from tests.support.anthropic_server import AnthropicServer
from tests.support.openai_server import OpenAIServer

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
from ravi_django.capabilities.llm import LLMFactory, close_clients
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
        done = forks.run(command, env=environment, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["Hello from the test server.", []]
