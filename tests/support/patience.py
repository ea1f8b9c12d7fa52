"""How long tests wait before they report a hang.

RAVI_TEST_SLOW=3 multiplies every bound by three, pytest's timeout included: for a machine with a fraction of a core.
"""

from __future__ import annotations

import os

SLOW = float(os.environ.get("RAVI_TEST_SLOW", 1))


def seconds(quiet: float) -> float:
    """A bound that a machine with two cores never reaches, scaled for this machine."""
    return quiet * SLOW


BOUND_S = seconds(float(os.environ.get("RAVI_TEST_BOUND_S", 60)))  # nothing takes longer unless it hangs
