"""Campaigns as `make chaos` runs them, of one seed each; the long ones, and other seeds, are run by hand."""

import pytest

from tests.acceptance.crash.chaos import campaign, tree

pytestmark = [pytest.mark.timeout(300), pytest.mark.crash]


@pytest.mark.parametrize(("runs", "seed"), [(14, 7)])
def test_nothing_is_lost_or_doubled_while_everything_dies(runs: int, seed: int) -> None:
    said: list[str] = []

    figures = campaign(runs, seed, said.append, give_up_s=18)

    assert not figures.violations, "\n".join([f"make chaos N={runs} SEED={seed}", *said, *map(str, figures.violations)])
    assert figures.kills and figures.takeovers, figures


@pytest.mark.parametrize(("runs", "seed"), [(20, 7)])
def test_a_tree_ends_with_every_run_and_every_token_while_everything_dies(runs: int, seed: int) -> None:
    said: list[str] = []

    figures = tree(runs, seed, said.append, give_up_s=12)

    assert not figures.violations, "\n".join(
        [f"make chaos TREE={runs} SEED={seed}", *said, *map(str, figures.violations)]
    )
    assert figures.kills, figures
