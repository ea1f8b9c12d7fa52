import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support.history_contract")

# Examples are counted, not timed: a busy machine must not fail a property.
settings.register_profile("ravi", deadline=None)
settings.load_profile("ravi")
