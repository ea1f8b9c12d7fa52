import importlib
import subprocess
import sys

import pytest

import ravi_django.agents
import ravi_django.agents.compaction
import ravi_django.agents.context
import ravi_django.capabilities.tools


@pytest.mark.parametrize(
    "module",
    [ravi_django.agents, ravi_django.agents.compaction, ravi_django.agents.context, ravi_django.capabilities.tools],
)
def test_what_is_named_can_be_imported(module: object) -> None:
    names = [name for name in module.__all__ if name not in ("DjangoHistoryProvider", "Runtime")]  # type: ignore[attr-defined]

    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("ravi_django", "save_spec"),
        ("ravi_django.agents", "HookCall HookEvent ResultType"),
        ("ravi_django.integrations.llm", "RetryPolicy"),
        ("ravi_django.middleware", "GuardrailError HookCall HookEvent Hooks RateLimitedError"),
    ],
)
def test_what_goes_with_it_is_there_too(module: str, names: str) -> None:
    found = importlib.import_module(module)

    assert [name for name in names.split() if name not in found.__all__] == []
    if module != "ravi_django":  # that needs a site
        assert [name for name in names.split() if not hasattr(found, name)] == []


def test_some_tools_are_not_said_to_be_all() -> None:
    assert "ravi_django.tools" in str(ravi_django.capabilities.tools.__doc__)


@pytest.mark.parametrize("module", [ravi_django.agents, ravi_django.agents.context])
def test_an_unknown_name_is_an_attribute_error(module: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = module.Nothing  # type: ignore[attr-defined]


def test_agents_and_tools_load_neither_django_nor_a_provider() -> None:
    code = (
        "import sys, ravi_django.agents, ravi_django.agents.context, ravi_django.capabilities.tools\n"
        "print([m for m in ('django', 'celery', 'channels', 'litellm', 'rest_framework') if m in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert found.stdout.strip() == "[]"
