import os

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest.register_assert_rewrite("tests.support.history_contract")


def pytest_configure(config: pytest.Config) -> None:
    """The same examples each time, more in `make test-crash`. A busy machine fails no property. Without a guard any
    failure will do: to look for a small one takes minutes."""
    examples = 50 if config.option.markexpr.startswith("crash") else 25
    left_out = {Phase.shrink, Phase.explain} if os.environ.get("RAVI_TEST_SHRINKS") == "0" else set()
    settings.register_profile(
        "ravi",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
        max_examples=examples,
        phases=[phase for phase in Phase if phase not in left_out],
    )
    settings.load_profile("ravi")
