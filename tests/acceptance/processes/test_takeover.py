"""What a second worker does when the first is doubled, killed, asleep or asked to leave."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from project.process import wait_until
from tests.support.model_server import Conversation
from tests.support.patience import BOUND_S, seconds
from tests.support.site_process import DRAIN_S, LEASE_S, MARGIN_S, SWEEP_S, Site, Worker

STEPS = 9  # calculator calls; with ten model calls, all that the agent's iterations allow
ANSWER = " ".join(f"word{index}" for index in range(8))
TAKEOVER_S = LEASE_S + SWEEP_S + MARGIN_S


def model_rows(site: Site, run_id: str) -> list[dict[str, Any]]:
    return [row for row in site.journal(run_id) if row["kind"] == "llm.call"]


def assert_whole(site: Site, run_id: str, steps: int = STEPS) -> None:
    """Every effect recorded once, in order, without a gap."""
    journal = site.journal(run_id)
    effects = [row for row in journal if not row["path"].startswith("@")]
    assert [row["seq"] for row in journal] == list(range(1, len(journal) + 1))
    assert [row["path"] for row in effects if row["kind"] == "llm.call"] == [
        row["path"] for row in sorted(model_rows(site, run_id), key=lambda row: int(row["path"].split(".")[0][4:]))
    ]
    assert sum(row["kind"] == "llm.call" for row in effects) == steps + 1
    results = [row["result"]["content"][0]["text"] for row in effects if row["kind"] == "tool.call"]
    assert results == [str(number + 1) for number in range(steps)]
    assert site.run(run_id)["output"] == ANSWER


def assert_paid_once(site: Site, run_id: str, about: Conversation) -> None:
    """The model server saw a call again only where the first worker had not recorded it, and at most one such."""
    rows = model_rows(site, run_id)
    again = {number: count for number, count in about.counts().items() if count > 1}
    assert sorted(about.counts()) == list(range(1, len(rows) + 1))
    assert len(again) <= 1 and all(count == 2 for count in again.values()), about.calls()
    assert all(rows[number - 1]["epoch"] == 2 for number in again), (again, [row["epoch"] for row in rows])


def assert_gap_free(frames: list[dict[str, Any]]) -> None:
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))


def test_a_killed_worker_is_taken_over_wherever_it_was(site: Site, workers: list[Worker]) -> None:
    doomed, heir = workers[:2]
    held_at = (1, 2, 5, 10)  # model calls in flight: nothing recorded, then one, four and nine tool calls
    halted = [site.model.conversation(f"held at {number}", steps=STEPS, hold={number}) for number in held_at]
    # Held at the answer alone: on a slow machine one could end before its worker is killed.
    flowing = [site.model.conversation("flowing", steps=STEPS, hold={STEPS + 1}) for _ in range(6)]
    runs = {site.submit_to(doomed, about): about for about in halted}
    for number, about in zip(held_at, halted, strict=True):
        about.wait_held(number)
    site.model.delay = 0.2  # so that those that flow are everywhere in between
    runs |= {site.submit_to(doomed, about): about for about in flowing}
    assert wait_until(lambda: len(flowing[-1].requests) > 1, seconds(10), poll=0.002)
    assert wait_until(lambda: all(site.events(run_id) for run_id in runs), BOUND_S)

    doomed.child.kill()
    site.model.delay = 0.0
    for about in (*halted, *flowing):
        about.release()
    done = [site.completed(run_id, TAKEOVER_S) for run_id in runs]

    assert all(heir.drives(site.owner(run_id)) for run_id in runs)
    assert all(run["lease_epoch"] == 2 and run["crashes"] == 0 for run in done)
    for run_id, about in runs.items():
        assert_whole(site, run_id)
        assert_paid_once(site, run_id, about)
        assert_gap_free(site.wait_streamed(run_id))
    site.replace(doomed)
    for number, about in zip(held_at, halted, strict=True):
        assert about.counts()[number] == 2


@pytest.mark.full
def test_a_zombie_records_nothing_streams_nothing_and_works_on(site: Site, workers: list[Worker]) -> None:
    zombie, heir = workers[:2]
    abouts = [site.model.conversation("zombie", steps=STEPS, hold={number}) for number in (2, 10)]
    runs = {site.submit_to(zombie, about): about for about in abouts}
    for about, number in zip(abouts, (2, 10), strict=True):
        about.wait_held(number)
    assert wait_until(lambda: all(site.events(run_id) for run_id in runs), BOUND_S)  # else the heir begins with a gap

    zombie.signal(signal.SIGSTOP)
    try:
        for run_id in runs:
            site.completed(run_id, TAKEOVER_S)
            assert wait_until(lambda run_id=run_id: site.run(run_id)["published_at"], BOUND_S)  # the last write of it
        before = {run_id: (site.run(run_id), site.journal(run_id), site.events(run_id)) for run_id in runs}
        for about in abouts:
            about.release()  # the answer lies in the zombie's socket when it wakes
    finally:
        zombie.signal(signal.SIGCONT)
    for run_id in runs:
        zombie.wait_for(f"run {run_id}: lease epoch 1 has ended")

    fresh = site.model.conversation("after sleep", steps=STEPS)
    fresh_id = site.submit_to(zombie, fresh)
    site.completed(fresh_id)
    assert_whole(site, fresh_id)
    for run_id, about in runs.items():
        assert (site.run(run_id), site.journal(run_id), site.events(run_id)) == before[run_id]
        assert_gap_free(site.events(run_id))
        epochs = [row["epoch"] for row in site.journal(run_id)]
        assert epochs == sorted(epochs) and set(epochs) == {1, 2}
        assert heir.drives(site.owner(run_id))
        assert_whole(site, run_id)
        assert_paid_once(site, run_id, about)


@pytest.mark.full
@pytest.mark.parametrize("stuck", [False, True], ids=["call-ends-in-time", "call-outlasts-the-drain"])
def test_a_worker_that_is_asked_to_leave_hands_over(site: Site, workers: list[Worker], stuck: bool) -> None:
    leaver, heir = workers[:2]
    about = site.model.conversation("leaving", steps=STEPS, hold={4})
    run_id = site.submit_to(leaver, about)
    about.wait_held(4)

    hints = heir.text.count("Task ravi.run[")
    said_before = len(leaver.text)
    with site.without_sweeps():
        leaver.signal(signal.SIGTERM)
        asked_at = time.monotonic()
        leaver.wait_for("draining for up to", BOUND_S)
        if not stuck:
            about.release()
        run = site.completed(run_id, DRAIN_S + MARGIN_S)
        handed_over = time.monotonic() - asked_at
        heir.wait_for("Task ravi.run[", BOUND_S, times=hints + 1)  # from the worker that leaves
        assert leaver.wait_ended(seconds(10)) == 0  # the interpreter takes its time to end
    about.release()
    last_words = leaver.text[said_before:]
    site.replace(leaver)

    if stuck:
        assert handed_over >= DRAIN_S
    assert (run["crashes"], run["attempts"], run["lease_epoch"]) == (0, 0, 2)
    assert "Traceback" not in last_words and "destroyed" not in last_words
    assert heir.drives(site.owner(run_id))
    assert about.counts()[4] == (2 if stuck else 1)
    assert site.journal(run_id)[-1]["kind"] == "run.completed"
    assert "run.retried" not in site.kinds(run_id)
    assert_whole(site, run_id)
    assert_paid_once(site, run_id, about)
    assert_gap_free(site.wait_streamed(run_id))
    assert site.query("SELECT name FROM ravi_workerprocess WHERE name LIKE %s", f"%:{leaver.pid}:%") == []
