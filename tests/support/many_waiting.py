"""Thousands of runs that wait for people: real rows, copied from a run that a real engine has suspended."""

from __future__ import annotations

from typing import Any

from django.db import connection

from ravi_django.models import HumanRequest, Run

TABLES = (  # by the column that says whose a row is
    ("ravi_session", "id"),
    ("ravi_run", "id"),
    ("ravi_inboxmessage", "run_id"),
    ("ravi_journalentry", "run_id"),
    ("ravi_turn", "run_id"),
    ("ravi_humanrequest", "run_id"),
    ("ravi_auditrecord", "run_id"),
)
# A message's number is its own: what a copy has read is its own message.
SEEN = """
UPDATE ravi_journalentry j SET read_upto = m.id
FROM copies c JOIN ravi_inboxmessage m ON m.run_id = c.run WHERE j.run_id = c.run AND j.path = '@started'
"""


def copy(run: Run, many: int) -> None:
    """So many runs like this one, each with a session, a journal and an open request of its own. On PostgreSQL."""
    request = HumanRequest.objects.get(run=run, status="pending")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE copies AS SELECT gen_random_uuid() AS run, gen_random_uuid() AS session, "
            "gen_random_uuid() AS request FROM generate_series(1, %s)",
            [many],
        )
        for table, column in TABLES:
            _insert(cursor, table, column, run, request)
        cursor.execute(SEEN)
        cursor.execute("DROP TABLE copies")
        cursor.execute("ANALYZE")


def _insert(cursor: Any, table: str, whose: str, run: Run, request: HumanRequest) -> None:
    cursor.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s AND is_identity = 'NO'",
        [table],
    )
    columns = dict(cursor.fetchall())
    new = {
        name: f"replace(replace(t.{name}::text, '{request.id}', c.request::text), '{run.id}', c.run::text)::{kind}"
        for name, kind in columns.items()
        if kind in ("json", "jsonb")
    }
    ids = {"ravi_session": "c.session", "ravi_run": "c.run", "ravi_humanrequest": "c.request"}
    new |= {"id": ids.get(table, "gen_random_uuid()"), "session_id": "c.session", "run_id": "c.run"}
    if table == "ravi_auditrecord":
        new["key"] = "sha256(c.run::text::bytea || t.key)"
    owner = run.session_id if table == "ravi_session" else run.id
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(new.get(name, f't."{name}"') for name in columns)
    cursor.execute(
        f"INSERT INTO {table} ({names}) SELECT {values} FROM {table} t, copies c WHERE t.{whose} = %s", [owner]
    )
