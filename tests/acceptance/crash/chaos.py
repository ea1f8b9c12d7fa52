"""The randomized campaign: `make chaos N=<runs> [FAULTS=] [SEED=]`, `… TREE=<runs>`, `… BACKENDS=<terminations>`
and `… STRESS=<seconds>`.

Runs with effects of all kinds, children, timers and signals, and small planned trees of runs, while everything around
them dies; or one planned tree, as large as one likes; or one worker that loses its connections to PostgreSQL, and no
other fault. When it is quiet again, every invariant of `checks` has to hold.
The last line says what happened; the exit status is 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random, SystemRandom
from tempfile import TemporaryDirectory
from typing import Any

from tests.acceptance.crash import stress
from tests.acceptance.crash.checks import TERMINAL, Evidence, Violation, story_of
from tests.acceptance.crash.lab import AGENT, Lab
from tests.acceptance.crash.lab_app.crash_points import POINTS
from tests.acceptance.crash.person import VOTES
from tests.acceptance.crash.plan import Plan
from tests.acceptance.crash.story import EFFECTS, HANDS_OVER, INPUT, OUTPUT, Author, Story
from tests.acceptance.crash.trouble import Trouble
from tests.acceptance.crash.wishes import PEOPLES
from tests.support.patience import seconds

WORKERS, MAX_RUNS = 3, 6
AT_ONCE = 14  # runs
SLOWEST_S = 0.04  # of a model call, and of each half of an effect
TROUBLE_EVERY_S = 0.4  # on average
DENSE_S = 0.25  # the same, in a campaign of so many faults
FAULT_S = 3.0  # so much time at most for a fault
CLOCKS = (0.0, 400.0, -400.0)  # how far the database's clock is ahead
BACKENDS_EVERY_S = 0.03
BACKENDS_MAX_RUNS = 12
SLOW_S = 0.003  # a commit, where backends are terminated in the middle of commits
WIRE_REST_S = 0.05  # there; the loop's own connection is to be in use again soon
ARMED = 0.3  # of the runs die at a named point as well
LOOK_S = 0.3
STILL_S = 20.0  # of trouble after the last run has begun
SAY_S = 10.0
QUIET_S = seconds(20)  # what has not moved for so long, when there is no more trouble, does not move
MANY_LINES = 400  # of journals are printed
TOOLS = (
    *EFFECTS,
    HANDS_OVER,
    "nap",
    "wait",
    "poke",
    "delegate",
    "hire",
    *(name for name in PEOPLES if name != "gated_inside"),
)
PERSONS = 2  # processes of people who answer
GOES_ON = 0.6  # of the submitted runs, if there is a quiet conversation, are its next message
MESSAGES = 5  # of a conversation
AGENTS = ("react/lab", "react/lab", "react/heir")  # that messages go to
PLANTED = 0.08  # of the submitted runs are roots of planned trees
SMALL, SMALL_DEPTH = (6, 14), (2, 5)  # runs of such a tree, and how deep it goes
CALL = INPUT + OUTPUT  # tokens
SPARES = (60 * CALL, 100_000)  # tokens of a tree's budget besides what it uses: lost requests count too
TREE_DEPTH = 5
TREE_MAX_RUNS = 15  # at once in a worker that has one large tree: so many count a crash when it dies
TREE_TROUBLE_EVERY_S = 1.0
PUBLISHED_S = seconds(30)  # after the last run's end, its stream has been ended, and archived


@dataclass(frozen=True, slots=True)
class Figures:
    runs: int
    kills: int
    takeovers: int
    faults: int  # of all kinds together
    violations: list[Violation]
    trouble: dict[str, int]
    journals: list[str]  # of the runs with violations, a line a row

    def __str__(self) -> str:
        return (
            f"chaos: runs={self.runs} kills={self.kills} takeovers={self.takeovers} faults={self.faults} "
            f"violations={len(self.violations)}"
        )


class Campaign:
    def __init__(
        self,
        lab: Lab,
        seed: int,
        runs: int,
        say: Callable[[str], None],
        *,
        faults: int = 0,
        backends: int = 0,
        trouble_every_s: float = TROUBLE_EVERY_S,
    ) -> None:
        """At least so many runs and faults; with `backends`, so many terminations and no other fault."""
        self.lab, self.runs, self.say = lab, runs, say
        self.faults, self.armed = (backends, 0.0) if backends else (faults, ARMED)
        self.random = Random(seed)
        self.author = Author(self.random, TOOLS)
        only: dict[str, Any] = {"weights": {"terminate_backend": 1}, "limit": backends} if backends else {}
        self.trouble = Trouble(lab, self.random, every_s=trouble_every_s, **only)
        lab.meanwhile = self.trouble.end
        self.submitted: list[str] = []
        self.live: set[str] = set()  # runs that have not ended, children too
        self._talks: list[list[str]] = []  # the runs of each conversation, one message after the other
        self._busy: set[str] = set()  # trees with runs that have not ended
        self._signalled: dict[str, set[int]] = {}  # by run, the numbers of the waits that were told to go on
        self._stories: dict[str, Story] = {}
        self._queued: set[str] = set()  # trees that were seen with runs that await a slot
        self._stuck: dict[str, str] = {}  # trees that were seen with such a run and a free slot

    def plant(self, plan: Plan, room: int, spare_tokens: int) -> None:
        """Submit a tree. `room` is how many of its runs may be at work at once. With few tokens to spare, a call
        waits while what others have reserved may be needed for it."""
        run_id = self.lab.plant(plan, room=room, spare_tokens=spare_tokens)
        self.submitted.append(run_id)
        self.live.add(run_id)

    def go(self, give_up_s: float) -> Figures:
        """Submit and trouble; soon after the last run has begun, or when the time is over, wait in peace for what is
        left."""
        begun = said = time.monotonic()
        last = begun + give_up_s
        while time.monotonic() < last and not self._over():
            if self._wanted():
                self._submit()
                last = min(begun + give_up_s, time.monotonic() + STILL_S)
            self._trouble(LOOK_S)
            self._look()
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                self.say(self._progress(said - begun))
        self.trouble.calm()
        self._wait_for_the_end()
        return self._figures()

    def _trouble(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.trouble.stir()
            self.lab.tend()
            time.sleep(0.02)

    def _wanted(self) -> bool:
        """More runs."""
        return len(self.submitted) < self.runs or self.trouble.total < self.faults

    def _over(self) -> bool:
        return not self._wanted() and not self.live

    def _submit(self) -> None:
        while self._wanted() and len(self.live) < AT_ONCE:
            dies = []
            if self.random.random() < self.armed:
                point = self.random.choice(POINTS)
                dies = [f"{point}.{self.random.choice(['before', 'after'])}:{self.random.randint(1, 4)}"]
            if self.random.random() < PLANTED:
                runs, depth = self.random.randint(*SMALL), self.random.randint(*SMALL_DEPTH)
                plan = Plan(self.random.randrange(1_000_000), runs, depth)
                self.plant(plan, self.random.randint(1, 6), self.random.choice(SPARES))
                continue
            hinted, agent = self.random.random() < 0.9, self.random.choice(AGENTS)
            quiet = [talk for talk in self._talks if len(talk) < MESSAGES and talk[-1] not in self._busy]
            if quiet and self.random.random() < GOES_ON:
                talk = self.random.choice(quiet)
                session = str(self.lab.run(talk[0])["session_id"])
            else:
                self._talks.append(talk := [])
                session = None
            story = self.author.story(to_heir=agent != AGENT)
            run_id = self.lab.submit(story, *dies, hinted=hinted, agent=agent, session=session)
            talk.append(run_id)
            self.submitted.append(run_id)
            self.live.add(run_id)
            self._busy.add(run_id)

    def _look(self) -> None:
        """See what lives, and be the world for it: signal those that wait for that, decide what is uncertain."""
        of_tree = "SELECT id, coalesce(root_id, id) AS tree FROM ravi_run WHERE NOT status = ANY(%s)"
        rows = self.lab.query(of_tree, list(TERMINAL))
        self.live, self._busy = {str(row["id"]) for row in rows}, {str(row["tree"]) for row in rows}
        self._look_at_slots()
        for run_id in self.live:
            self._signal(run_id)
        for request in self.lab.undecided():
            self.lab.decide(request)

    def _look_at_slots(self) -> None:
        """No run awaits a slot that is free."""
        rows = self.lab.query(
            "SELECT coalesce(root_id, id) AS tree, count(*) FILTER (WHERE NOT awaits_slot) AS working FROM ravi_run "
            "WHERE status IN ('pending', 'running') GROUP BY 1 HAVING count(*) FILTER (WHERE awaits_slot) > 0"
        )
        for tree, working in ((str(row["tree"]), row["working"]) for row in rows):
            self._queued.add(tree)
            if working < self.lab.rooms.get(tree, 0):
                self._stuck[tree] = f"had {working} runs at work and others queued, and room for {self.lab.rooms[tree]}"

    def _signal(self, run_id: str) -> None:
        told = self._signalled.setdefault(run_id, set())
        for step in self._story(run_id).steps():
            if step.tool == "wait" and step.number not in told and self.random.random() < 0.4:
                told.add(step.number)
                self.lab.ask("signal", run_id=run_id, name=f"go {step.number}", key=f"go {step.number}")

    def _story(self, run_id: str) -> Story:
        if run_id not in self._stories:
            self._stories[run_id] = self.lab.stories.get(run_id) or self._childs_story(run_id)
        return self._stories[run_id]

    def _childs_story(self, run_id: str) -> Story:
        rows = self.lab.query("SELECT run_id, body FROM ravi_inboxmessage WHERE run_id = %s ORDER BY id", run_id)
        return story_of(rows)

    def _wait_for_the_end(self) -> None:
        """As long as anything moves."""
        moves, moved = -1, time.monotonic()
        while time.monotonic() - moved < QUIET_S:
            self._look()
            if not self.live:
                return
            self.lab.until(lambda: False, LOOK_S)
            now = self.lab.query("SELECT sum(next_seq) AS moves FROM ravi_run")[0]["moves"]
            if now != moves:
                moves, moved = now, time.monotonic()

    def _figures(self) -> Figures:
        evidence = Evidence(self.lab)
        found = evidence.violations()
        found += [Violation(tree, wrong) for tree, wrong in self._stuck.items()]
        found += [Violation(root, wrong) for root in self.submitted for wrong in self._of_stream(root)]
        journals = [line for run_id in sorted({each.run for each in found}) for line in evidence.account(run_id)]
        made = {**self.trouble.made, "queued": len(self._queued), **self._said()}
        self.say(self._lateness())
        kills, takeovers = self.lab.kills, self.lab.takeovers
        return Figures(len(self.submitted), kills, takeovers, self.trouble.total, found, made, journals)

    def _lateness(self) -> str:
        rows = self.lab.query(
            "SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY late_s), 0) AS half, "
            "coalesce(max(late_s), 0) AS most FROM lab_takeover"
        )
        return "taken over {half:.1f} s after the lease's end (median), {most:.1f} s (maximum)".format(**rows[0])

    def _said(self) -> dict[str, int]:
        """What people were told of their answers: that it counts, that another's did, or nothing, being killed."""
        return dict(Counter(f"people {vote['kind']}" for vote in self.lab.ledger(VOTES)))

    def _of_stream(self, root: str) -> list[str]:
        published = "SELECT 1 FROM ravi_run WHERE id = %s AND published_at IS NOT NULL"
        if not self.lab.until(lambda: self.lab.query(published, root), PUBLISHED_S):
            return ["its stream has not ended"]
        return list(of_stream(self.lab.ask("frames", tree=root)))

    def _progress(self, seconds: float) -> str:
        ended = len(self.submitted) - len(self.live & set(self.submitted))
        made = ", ".join(f"{kind} {count}" for kind, count in sorted(self.trouble.made.items()))
        runs = max(self.runs, len(self.submitted))
        live = f"{len(self.live)} live"
        return f"{seconds:4.0f} s: {ended} of {runs} runs ended, {live}, {self.lab.kills} killed; {made}"


def of_stream(frames: list[dict[str, Any]]) -> Iterator[str]:
    """Numbers without a hole that no `stream.gap` has announced, and one end, which comes last."""
    following = 1
    for frame in frames:
        is_gap = frame["type"] == "stream.gap"
        first = frame["from"] if is_gap else frame.get("from_seq", frame["seq"])
        if first > following or (first < following and not is_gap):
            yield f"its stream goes on at {first} where {following} comes next ({frame['type']})"
        if is_gap and frame["to"] + 1 != frame["seq"]:
            yield f"its gap to {frame['to']} ends in front of {frame['seq']}"
        following = frame["seq"] + 1
    ends = [frame["seq"] for frame in frames if frame["type"] == "stream.done"]
    if ends != [following - 1]:
        yield f"its stream ends at {ends}, its last frame is {following - 1}"


def campaign(
    runs: int,
    seed: int,
    say: Callable[[str], None] = print,
    *,
    faults: int = 0,
    give_up_s: float | None = None,
    tree: int = 0,
) -> Figures:
    """One campaign in a laboratory of its own. The trouble ends with the runs and when there were so many faults, or
    after `give_up_s`. `tree`: the first of the runs is the root of a planned tree of so many."""
    give_up_s = 60 + 4.0 * runs + FAULT_S * faults if give_up_s is None else give_up_s
    every_s = DENSE_S if faults else TROUBLE_EVERY_S
    with _lab(MAX_RUNS, clock_s=Random(seed).choice(CLOCKS)) as lab:
        lab.persons_wanted = PERSONS
        made = Campaign(lab, seed, runs, say, faults=faults, trouble_every_s=every_s)
        if tree:
            made.plant(Plan(seed, tree, TREE_DEPTH), room=2, spare_tokens=tree * CALL)
        return made.go(give_up_s)


def backends(count: int, seed: int, say: Callable[[str], None] = print) -> Figures:
    """So many terminations of PostgreSQL backends of one worker under load, and no other fault."""
    with _lab(BACKENDS_MAX_RUNS, workers=1, CRASH_WIRE_REST_S=str(WIRE_REST_S)) as lab:
        lab.persons_wanted = PERSONS
        made = Campaign(lab, seed, 1, say, backends=count, trouble_every_s=BACKENDS_EVERY_S)
        made.trouble.fault("slow", float("inf"), SLOW_S)
        return made.go(60 + count)


def tree(
    runs: int, seed: int, say: Callable[[str], None] = print, *, depth: int = TREE_DEPTH, give_up_s: float | None = None
) -> Figures:
    """One planned tree in a laboratory of its own. The trouble ends with it, or after `give_up_s`."""
    plan = Plan(seed, runs, depth)
    give_up_s = 60 + 2.0 * runs if give_up_s is None else give_up_s
    with _lab(TREE_MAX_RUNS) as lab:
        campaign = Campaign(lab, seed, 1, say, trouble_every_s=TREE_TROUBLE_EVERY_S if runs > 100 else TROUBLE_EVERY_S)
        campaign.plant(plan, max(1, runs // 25), spare_tokens=runs * CALL)
        return replace(campaign.go(give_up_s), runs=runs)


@contextmanager
def _lab(max_runs: int, *, workers: int = WORKERS, clock_s: float = 0.0, **env: str) -> Iterator[Lab]:
    with (
        TemporaryDirectory(prefix="ravi-lab-") as folder,
        Lab(Path(folder), workers=workers, max_runs=max_runs, slowest_s=SLOWEST_S, clock_s=clock_s, **env) as lab,
    ):
        yield lab


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="chaos", description="Runs that must survive everything.")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--tree", type=int, metavar="RUNS", help="instead: one tree of so many runs")
    parser.add_argument("--faults", type=int, default=0, help="at least so many, of all kinds together")
    parser.add_argument("--backends", type=int, help="instead: so many terminations of one worker's backends")
    parser.add_argument(
        "--stress", type=float, metavar="SECONDS", help="instead: people and an operator, see stress.py"
    )
    parser.add_argument("--seed", type=int, help="of the stories and the trouble; the machine's timing stays its own")
    given = parser.parse_args(argv)
    seed = SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    begun = time.monotonic()

    def say(line: str) -> None:
        print(line, flush=True)

    say(f"seed {seed}")
    if given.stress is not None:
        return stress.both(given.stress, seed)
    if given.backends is not None:
        figures = backends(given.backends, seed, say)
    elif given.tree is not None:
        figures = tree(given.tree, seed, say)
    else:
        figures = campaign(given.runs, seed, say, faults=given.faults)
    print(f"{time.monotonic() - begun:.0f} s; trouble: {figures.trouble}", flush=True)
    for violation in figures.violations:
        print(f"violation: {violation}", flush=True)
    print("\n".join(figures.journals[:MANY_LINES]), flush=True, end="\n" if figures.journals else "")
    print(figures, flush=True)
    return 1 if figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
