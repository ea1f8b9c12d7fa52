"""A campaign as `make chaos` runs it, as long as CI can wait for; the long ones are run by hand."""

from random import SystemRandom

from tests.acceptance.crash.chaos import campaign

RUNS = 60


def test_nothing_is_lost_or_doubled_while_everything_dies() -> None:
    said: list[str] = []
    seed = SystemRandom().randrange(1_000_000)

    figures = campaign(RUNS, seed, said.append, give_up_s=40)

    assert not figures.violations, "\n".join([f"seed {seed}", *said, *map(str, figures.violations)])
    assert figures.kills and figures.takeovers, figures
