"""Campaigns as `make chaos` runs them, as long as CI can wait for; the long ones are run by hand."""

from random import SystemRandom

import pytest

from tests.acceptance.crash.chaos import campaign, tree

FULL = pytest.mark.crash  # with a new seed each time
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(("runs", "seed"), [(20, 7), pytest.param(60, None, marks=FULL)])
def test_nothing_is_lost_or_doubled_while_everything_dies(runs: int, seed: int | None) -> None:
    said: list[str] = []
    seed = SystemRandom().randrange(1_000_000) if seed is None else seed

    figures = campaign(runs, seed, said.append, give_up_s=40)

    assert not figures.violations, "\n".join([f"make chaos N={runs} SEED={seed}", *said, *map(str, figures.violations)])
    assert figures.kills and figures.takeovers, figures


@pytest.mark.parametrize(("runs", "seed"), [(15, 7), pytest.param(30, None, marks=FULL)])
def test_a_tree_ends_with_every_run_and_every_token_while_everything_dies(runs: int, seed: int | None) -> None:
    said: list[str] = []
    seed = SystemRandom().randrange(1_000_000) if seed is None else seed

    figures = tree(runs, seed, said.append, give_up_s=12)

    assert not figures.violations, "\n".join(
        [f"make chaos TREE={runs} SEED={seed}", *said, *map(str, figures.violations)]
    )
    assert figures.kills, figures
