import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support.history_contract")


def pytest_configure(config: pytest.Config) -> None:
    """The same examples each time, fewer in the gate. A busy machine fails no property."""
    examples = 25 if "not full" in config.option.markexpr else 50
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "ravi", deadline=None, suppress_health_check=slow, derandomize=True, max_examples=examples
    )
    settings.load_profile("ravi")
