"""Schedules with fixed seeds; others, and the moves of one, by `make simulate`."""

import pytest

from tests.sim.play import play, stage
from tests.support.runs import on_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]

SEEDS, AT_ONCE = 200, 50  # about 15 CPU seconds


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_no_schedule_breaks_a_promise(first):
    with stage() as witness:
        for seed in range(first, first + AT_ONCE):
            world, wrong = play(witness, seed)
            assert not wrong, "\n".join([f"seed {seed}:", *world.trace, *wrong])


def test_a_seed_is_played_again_move_by_move():
    with stage() as witness:
        first, second = (play(witness, 7)[0].trace for _ in range(2))
    assert first == second
