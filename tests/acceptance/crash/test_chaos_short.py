"""Campaigns as `make chaos` runs them, as long as CI can wait for; the long ones are run by hand."""

from random import SystemRandom

import pytest

from tests.acceptance.crash.chaos import campaign, tree

RUNS = 60
TREE = 30

pytestmark = pytest.mark.timeout(300)


def test_nothing_is_lost_or_doubled_while_everything_dies() -> None:
    said: list[str] = []
    seed = SystemRandom().randrange(1_000_000)

    figures = campaign(RUNS, seed, said.append, give_up_s=40)

    assert not figures.violations, "\n".join([f"seed {seed}", *said, *map(str, figures.violations)])
    assert figures.kills and figures.takeovers, figures


def test_a_tree_ends_with_every_run_and_every_token_while_everything_dies() -> None:
    said: list[str] = []
    seed = SystemRandom().randrange(1_000_000)

    figures = tree(TREE, seed, said.append, give_up_s=12)

    assert not figures.violations, "\n".join([f"seed {seed}", *said, *map(str, figures.violations)])
    assert figures.kills, figures
