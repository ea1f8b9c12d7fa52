"""A campaign as `make chaos` runs them; the long ones, and other seeds, are run by hand."""

import pytest

from tests.acceptance.crash.chaos import campaign

pytestmark = [pytest.mark.timeout(300), pytest.mark.crash]


@pytest.mark.parametrize(("runs", "tree", "seed"), [(14, 12, 7)])
def test_nothing_is_lost_or_doubled_while_everything_dies(runs: int, tree: int, seed: int) -> None:
    """One of the runs is the root of a tree, whose runs and tokens are checked too."""
    said: list[str] = []

    figures = campaign(runs, seed, said.append, give_up_s=18, tree=tree)

    again = f"make chaos N={runs} SEED={seed}, with a tree of {tree}"
    assert not figures.violations, "\n".join([again, *said, *map(str, figures.violations)])
    assert figures.kills and figures.takeovers, figures
