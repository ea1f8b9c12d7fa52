from __future__ import annotations

import logging
import pickle
import subprocess
import sys

import pytest

from ravi_django.capabilities.llm import LiteLLMModel, LLMFactory, RehearsalModel, model_from_env
from ravi_django.capabilities.llm.redaction import redact, redact_logs
from ravi_django.kernel import InvalidInputError
from tests.support import forks


def test_builds_a_litellm_model_with_its_settings():
    model = LLMFactory("gpt-4o", "k", timeout=5, prices={"input_cost_per_token": 1.0}, temperature=0.5).build()

    assert isinstance(model, LiteLLMModel)
    assert (model.name, model.timeout, model.params) == ("gpt-4o", 5, {"temperature": 0.5})


def test_rehearsal_by_name():
    model = LLMFactory("rehearsal", delay=0, temperature=0.5).build()

    assert isinstance(model, RehearsalModel)
    assert (model.name, model.delay) == ("rehearsal", 0)


@pytest.mark.parametrize(("environ", "name"), [({}, "rehearsal"), ({"RAVI_MODEL": " "}, "rehearsal")])
def test_without_a_model_in_the_environment(environ, name):
    assert model_from_env(environ).name == name


def test_model_in_the_environment(monkeypatch):
    monkeypatch.setenv("RAVI_MODEL", "anthropic/claude-x")

    assert model_from_env().name == "anthropic/claude-x"


@pytest.mark.parametrize("name", ["", None])
def test_a_model_needs_a_name(name):
    with pytest.raises(InvalidInputError, match="rehearsal"):
        LLMFactory(name)


def test_the_key_stays_in_the_process(caplog):
    caplog.set_level(logging.DEBUG)
    factory = LLMFactory("gpt-4o", "sk-abc-0123456789")
    model = factory.build()

    assert "sk-abc" not in f"{factory!r} {factory} {model!r} {model} {caplog.text}"
    for holder in (model, factory, model._keys):
        with pytest.raises(TypeError):
            pickle.dumps(holder)


def test_parameters_that_hold_keys_are_kept_apart():
    headers = {"Authorization": "Bearer abc-0123456789", "Accept": "application/json"}
    model = LLMFactory("bedrock/x", aws_secret_access_key="aws-0123456789", extra_headers=headers, top_k=3).build()

    assert model.params == {"top_k": 3}
    said = "got aws-0123456789 and Bearer abc-0123456789 (abc-0123456789), not application/json"
    assert redact(said) == "got [key] and [key] ([key]), not application/json"


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


def test_a_key_is_known_as_long_as_its_client_lives():
    model = LLMFactory("gpt-4o", "Zq8/plain-0123456789").build()
    assert redact("Zq8/plain-0123456789") == "[key]"

    del model

    assert redact("Zq8/plain-0123456789") == "Zq8/plain-0123456789"


def test_keys_in_the_environment_are_redacted(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Zq9/plain-0123456789")
    monkeypatch.setenv("OURS_API_KEY", "Zq9/other-0123456789")

    assert redact("Zq9/plain-0123456789 Zq9/other-0123456789") == "[key] [key]"


def test_a_server_of_ones_own_in_the_environment():
    environ = {"RAVI_MODEL": "openai/x", "RAVI_MODEL_API_BASE": "http://h/v1", "RAVI_MODEL_API_KEY": "key-0123"}

    model = model_from_env(environ)

    assert (model.name, model._api_base, model._api_key) == ("openai/x", "http://h/v1", "key-0123")


def test_building_a_model_leaves_litellm_unimported():
    code = (
        "import sys; from ravi_django.capabilities import llm; from ravi_django.integrations.llm import LLMFactory\n"
        "for factory in (llm.LLMFactory, LLMFactory): factory('gpt-4o', 'k').build()\n"
        "print('litellm' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


@pytest.mark.full
def test_loading_keeps_off_the_network_and_the_terminal():
    code = (
        "import os, socket\n"
        "def refuse(*args): raise AssertionError('network')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "from ravi_django.capabilities.llm import warm\n"
        "warm()\n"
        "import litellm\n"
        "print(os.environ['LITELLM_LOCAL_MODEL_COST_MAP'], litellm.suppress_debug_info, len(litellm.model_cost) > 500)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (done.stdout.strip(), done.stderr) == ("True True True", "")


def test_the_first_call_does_not_stall_the_event_loop():
    code = (
        "import asyncio, sys, threading\n"
        "from ravi_django.capabilities.llm import loading\n"
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
