"""`make bench-peers`: the same loop in other systems, on the same PostgreSQL, in the same run.

Each peer is used as its documentation says, in an environment of its own (.bench-venv), with versions pinned in
requirements.txt. The loop is N model calls and N-1 tool calls; model and tool answer at once. What is timed is the
whole call, from handing in the question to having the answer: ours too, with all that submitting and claiming cost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import psycopg

from benchmarks import report, stack
from benchmarks.peers import environment
from benchmarks.raw_commit import RawCommit
from benchmarks.report import Figure
from benchmarks.run import OUT
from benchmarks.stack import Stack
from project.process import ProcessError

HERE = Path(__file__).resolve().parent
FULL = {10: 40, 50: 15, 200: 5}
QUICK = {3: 2, 6: 2}
TIMEOUT_S = 600.0
OURS = ("raw_commit", "durable_step_whole_run", "durable_step")
PEERS = {"dbos": "loop_dbos.py", "langgraph": "loop_langgraph.py", "openai_agents": "loop_openai_agents.py"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Measure others beside us.")
    parser.add_argument("--quick", action="store_true", help="few repetitions: the figures mean little")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go, as JSON")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    try:
        environment.install()
        with stack.servers() as servers:
            stack.set_up_site()
            figures = _measure(servers, plan)
    except ProcessError as error:
        print(f"bench-peers: {error}", file=sys.stderr)
        return 1
    report.write(figures, options.out)
    print(report.table(_rows(figures, plan)))
    print(report.closing_line("bench-peers", figures))
    return 0


def _measure(servers: Stack, plan: Mapping[int, int]) -> list[Figure]:
    from benchmarks import steps

    with RawCommit(servers.database_url) as raw:
        print("measuring ravi_django", file=sys.stderr, flush=True)
        ours = [figure for figure in steps.measure(plan, raw) if figure.name in OURS]
        return [*ours, *(figure for name in PEERS for figure in _peer(name, servers, plan, raw))]


def _peer(name: str, servers: Stack, plan: Mapping[int, int], raw: RawCommit) -> list[Figure]:
    """The peer in a process and a database of its own; raw commits right before and after."""
    print(f"measuring {name}", file=sys.stderr, flush=True)
    url = _own_database(servers.database_url, f"bench_{name}")
    commits = raw.sample(200)
    repetitions = [f"{turns}:{times}" for turns, times in plan.items()]
    command = [str(environment.PYTHON), str(HERE / PEERS[name]), url, *repetitions]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=_bare_environment())
    commits += raw.sample(200)
    if done.returncode:
        raise ProcessError(f"{name} failed\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    one_commit = median(commits)
    return [
        Figure(f"{name}_step", int(turns), median(samples), "ms", median(samples) / one_commit)
        for turns, samples in found.items()
    ]


def _own_database(url: str, name: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return url.rsplit("/", 1)[0].replace("postgres://", "postgresql://") + f"/{name}"


def _bare_environment() -> dict[str, str]:
    """Nothing of ours, and nothing that would send the peers' telemetry or traces anywhere."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    return {**kept, "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


def _rows(figures: list[Figure], plan: Mapping[int, int]) -> list[list[str]]:
    """A system a row, a number of turns a column."""
    by_key = {figure.key: figure for figure in figures}
    names = {
        "ravi_django": "durable_step_whole_run",
        **{name: f"{name}_step" for name in PEERS},
        "ravi_django, from claim to end": "durable_step",
    }
    rows = [["ms a step at turns (of raw commit)", *map(str, plan)]]
    for shown, name in names.items():
        cells = [by_key[f"{name}_{turns}"] for turns in plan]
        rows.append([shown, *(f"{cell.value:.2f} ({cell.ratio_to_raw_commit:.1f}x)" for cell in cells)])
    rows.append(["raw insert + commit", *[f"{by_key['raw_commit'].value:.2f} (1.0x)"] * len(plan)])
    return rows


if __name__ == "__main__":
    sys.exit(main())
