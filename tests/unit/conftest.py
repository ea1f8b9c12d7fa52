import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support.history_contract")


def pytest_configure(config: pytest.Config) -> None:
    """The gate takes the same examples each time, `-m crash` takes new ones. A busy machine fails no property."""
    settings.register_profile("ravi", deadline=None, derandomize="not crash" in config.option.markexpr)
    settings.load_profile("ravi")
