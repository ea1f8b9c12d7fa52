"""`python -m tests.support.forked_bench`: benchmarks.run on a migrated cluster, with forked processes.

Its figures mean less than those of processes of their own: it shows that the benchmarks work.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from benchmarks import run, stack
from project.process import Child
from project.services import Postgres
from tests.support import forks, template


class Forked(Child):
    def _popen(self, log: IO[bytes]) -> subprocess.Popen[Any]:
        return forks.Popen(
            self.argv[1:],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.env},
        )


def migrated(folder: Path) -> Postgres:
    return Postgres(template.cluster(folder))


def main() -> int:
    stack.Child, stack.Postgres = Forked, migrated  # type: ignore[attr-defined, assignment, misc]
    return run.main()


if __name__ == "__main__":
    sys.exit(main())
