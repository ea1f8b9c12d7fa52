"""The frames of a tree whose runs are driven by several workers are one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from project.process import wait_until
from tests.support.model_server import Conversation
from tests.support.openai_server import Body, Reply, tool_results
from tests.support.patience import BOUND_S
from tests.support.site_process import LEASE_S, MARGIN_S, SWEEP_S, Site, Worker

TEAM = "orchestrator/team"
HANDS = 6
TAKEOVER_S = LEASE_S + SWEEP_S + MARGIN_S


@pytest.fixture
def crowded(site: Site, workers: list[Worker]) -> Iterator[Worker]:
    """A third worker, with room for two runs: what a team has beyond that goes to the others."""
    site.env["SITE_MAX_RUNS"] = "2"
    try:
        worker = site.start_worker()
    finally:
        del site.env["SITE_MAX_RUNS"]
    yield site.warm(worker)
    site.workers.remove(worker)
    worker.child.stop()


def team(site: Site, hands: list[Conversation]) -> Conversation:
    """A conversation in which all hands are asked at once, then answers."""

    def script(body: Body) -> Reply:
        if tool_results(body):
            return Reply(text="All of it is done.")
        return Reply(tool_calls=tuple(("handoff_researcher", {"task": hand.text}) for hand in hands))

    return site.model.conversation("team", script=script, hold={1})


def submit(site: Site, about: Conversation, worker: Worker) -> str:
    for _ in range(5):  # another worker's look may find it first
        run_id = str(site.client.ask("submit", text=about.text, agent=TEAM, hint=worker.name)["id"])
        assert wait_until(lambda run_id=run_id: site.run(run_id)["lease_epoch"] > 0, BOUND_S)
        about.wait_held(1)
        if worker.drives(site.run(run_id)["lease_owner"]):
            about.release()
            return run_id
        cancel_sql = "UPDATE ravi_run SET cancel_requested_at = now() WHERE id = %s RETURNING id"
        site.query(cancel_sql, run_id)
        site.wait_ended(run_id)
        site.model.renew(about)
    raise AssertionError(f"{worker.name} took none of the runs that were meant for it")


def children(site: Site, run_id: str) -> list[str]:
    return [str(row["id"]) for row in site.query("SELECT id FROM ravi_run WHERE parent_id = %s ORDER BY id", run_id)]


def workers_of(site: Site, run_id: str) -> set[str]:
    rows = [row for one in (run_id, *children(site, run_id)) for row in site.journal(one)]
    return {row["result"]["worker"] for row in rows if row["kind"] in ("run.started", "run.resumed")}


def assert_one_sequence(site: Site, run_id: str, frames: list[dict[str, Any]]) -> None:
    """Numbered without a gap; each says whose it is; a run's own come in its order; the end is last, and one."""
    below = children(site, run_id)
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert [place for place, frame in enumerate(frames) if frame["type"] == "stream.done"] == [len(frames) - 1]
    for frame in frames:
        assert frame["run"] in (run_id, *below)
        mine = (TEAM, None, 0) if frame["run"] == run_id else ("react/researcher", run_id, 1)
        assert (frame["agent"], frame["parent"], frame["depth"]) == mine
    for child in below:
        own = [frame for frame in frames if frame["run"] == child]
        steps = [frame["step"] for frame in own if frame["type"] == "progress"]
        assert steps[0] == "started" and steps[-1] == "done", steps
        assert own[0]["type"] == "progress" and own[-1]["type"] == "progress"
        results = [frame["content"]["path"] for frame in own if frame.get("step") == "tool_result"]
        assert len(results) == len(set(results)) == 2, steps
        assert own.index(next(frame for frame in own if frame["type"] == "completion")) > 0


@pytest.mark.full
def test_a_worker_killed_with_a_part_of_the_team_leaves_no_gap(site: Site, crowded: Worker) -> None:
    hands = [site.model.conversation(f"hand {number}", steps=2, hold={2}) for number in range(HANDS)]
    run_id = submit(site, team(site, hands), crowded)
    for hand in hands:
        hand.wait_held(2)
    assert wait_until(lambda: len(workers_of(site, run_id)) > 1, BOUND_S)
    assert wait_until(lambda: len({frame["run"] for frame in site.events(run_id)}) == HANDS + 1, BOUND_S)
    doomed = next(
        worker for worker in site.workers if any(worker.drives(site.owner(child)) for child in children(site, run_id))
    )

    doomed.child.kill()
    for hand in hands:
        hand.release()
    site.completed(run_id, TAKEOVER_S + 10)
    if doomed is not crowded:
        site.replace(doomed)

    assert_one_sequence(site, run_id, site.wait_streamed(run_id))
