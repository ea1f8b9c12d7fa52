import importlib
import subprocess
import sys

import pytest

import ravi_django.agents
import ravi_django.agents.context
import ravi_django.capabilities.tools
import ravi_django.errors
import ravi_django.kernel.errors as kernel_errors
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


def test_the_package_and_its_errors_export_what_a_site_uses() -> None:
    for name in ravi_django.__all__:
        assert getattr(ravi_django, name) is not None, name
    assert ravi_django.HumanInput is ravi_django.kernel.HumanInput

    errors = {name for name, one in vars(kernel_errors).items() if isinstance(one, type)} - {"Any", "datetime"}
    assert errors <= set(dir(ravi_django.errors))


def test_agents_and_tools_load_neither_django_nor_a_provider() -> None:
    code = (
        "import sys, ravi_django.agents, ravi_django.agents.context, ravi_django.capabilities.tools\n"
        "print([m for m in ('django', 'celery', 'channels', 'litellm', 'rest_framework') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=BOUND_S)
    assert found.stdout.strip() == "[]"
