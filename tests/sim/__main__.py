"""`python -m tests.sim [--seed N] [--seconds S]`: schedules of random seeds for so long, or the one of a seed with all
its moves. The exit is 1 when one breaks a promise."""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
import time
from pathlib import Path

import django
import psutil

from project.services import Postgres
from tests.support import template


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ravi-sim-") as folder,
        Postgres(template.cluster(Path(folder) / "postgresql"), fast=True) as server,
    ):
        os.environ |= {"DATABASE_URL": server.url, "DJANGO_SETTINGS_MODULE": "project.settings"}
        os.environ.pop("REDIS_URL", None)
        django.setup()
        assert server.pid is not None
        return _play(options.seed, options.seconds, server.pid)


def _play(only: int | None, seconds: float, server: int) -> int:
    from tests.sim.play import play, stage

    played, moves = 0, 0
    broken = []
    with stage() as witness:
        begun, cpu_s = time.monotonic(), _cpu_s(server)
        while not played or (only is None and time.monotonic() - begun < seconds and not broken):
            seed = secrets.randbits(32) if only is None else only
            world, wrong = play(witness, seed)
            played += 1
            moves += len(world.trace)
            if wrong or only is not None:
                broken += [seed] if wrong else []
                print(f"seed {seed}:", *world.trace, *wrong, sep="\n  ", flush=True)
        cpu_s = _cpu_s(server) - cpu_s
    print(
        f"simulation: schedules={played} moves={moves} violations={len(broken)} cpu_s={cpu_s:.1f} "
        f"a_minute_of_cpu={played / cpu_s * 60:.0f}"
    )
    return 1 if broken else 0


def _cpu_s(server: int) -> float:
    """Of this process and of PostgreSQL with its processes."""
    processes = [psutil.Process(server), *psutil.Process(server).children()]
    return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    raise SystemExit(main())
