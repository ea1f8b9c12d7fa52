"""The yardstick: what the database itself takes for one insert and its commit, measured between the repetitions."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Self

import psycopg

_BODY = json.dumps({"content": [{"type": "text", "text": "as long as a journal row of a short tool call " * 8}]})


class RawCommit:
    """A connection and a table of its own; a prepared one-row INSERT in autocommit, nothing else."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS bench_raw_commit (id bigserial PRIMARY KEY, body jsonb NOT NULL)"
        )

    def sample(self, count: int = 50) -> list[float]:
        """Milliseconds of each of `count` commits."""
        cursor = self._connection.cursor()
        taken = []
        for _ in range(count):
            begun = time.perf_counter()
            cursor.execute("INSERT INTO bench_raw_commit (body) VALUES (%s)", (_BODY,), prepare=True)
            taken.append((time.perf_counter() - begun) * 1000)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
