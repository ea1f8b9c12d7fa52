import importlib
import subprocess
import sys

import pytest

import ravi_django.agents
import ravi_django.agents.context
import ravi_django.capabilities.tools
from tests.support.cases import case
from tests.support.patience import BOUND_S


def test_what_is_named_can_be_imported() -> None:
    tools = ravi_django.capabilities.tools
    assert [name for name in tools.__all__ if not hasattr(tools, name)] == []

    for module, names in [
        ("ravi_django", "save_spec"),
        ("ravi_django.agents", "HookCall HookEvent ResultType"),
        ("ravi_django.integrations.llm", "RetryPolicy"),
        ("ravi_django.middleware", "GuardrailError HookCall HookEvent Hooks RateLimitedError"),
    ]:
        with case(module, names):
            found = importlib.import_module(module)
            assert [name for name in names.split() if name not in getattr(found, "__all__", dir(found))] == []
            if module != "ravi_django":  # that needs a site
                assert [name for name in names.split() if not hasattr(found, name)] == []

    for module in [ravi_django.agents, ravi_django.agents.context]:
        with case(module), pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
            _ = module.Nothing


def test_agents_and_tools_load_neither_django_nor_a_provider() -> None:
    code = (
        "import sys, ravi_django.agents, ravi_django.agents.context, ravi_django.capabilities.tools\n"
        "print([m for m in ('django', 'celery', 'channels', 'litellm', 'rest_framework') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=BOUND_S)
    assert found.stdout.strip() == "[]"
