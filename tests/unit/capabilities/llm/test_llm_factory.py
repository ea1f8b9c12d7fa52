from __future__ import annotations

import logging
import pickle
import subprocess
import sys

import pytest

from ravi_django.capabilities.llm import LiteLLMModel, LLMFactory, RehearsalModel, model_from_env
from ravi_django.kernel import InvalidInputError


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
    with pytest.raises(TypeError):
        pickle.dumps(model)


@pytest.mark.parametrize(
    "code",
    [
        "from ravi_django.capabilities.llm import LLMFactory",
        "from ravi_django.integrations.llm import LLMFactory",
    ],
)
def test_building_a_model_leaves_litellm_unimported(code):
    code = f"import sys; {code}; LLMFactory('gpt-4o', 'k').build(); print('litellm' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "False"


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

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

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

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[False] True"
