"""Many runs and their rollups, by SQL: for tests of what they cost to show. On PostgreSQL."""

from __future__ import annotations

from django.db import connection

from ravi_django.models import Run, Status
from tests.support.runs import make_run


def fill(runs: int) -> None:
    """Runs of 90 days, five agents and 200 users, one in a hundred suspended, and their rollups."""
    columns = [field.column for field in Run._meta.concrete_fields]
    values = dict(zip(columns, columns, strict=True)) | {
        "id": "gen_random_uuid()",
        "agent": "'test/agent' || n %% 5",
        "status": "CASE WHEN n %% 100 = 0 THEN 'suspended' WHEN n %% 37 = 0 THEN 'failed' ELSE 'completed' END",
        "finished_at": "CASE WHEN n %% 100 > 0 THEN now() - make_interval(secs => n * 89.0 * 86400 / %s) END",
        "parent_id": "CASE WHEN n %% 100 = 0 THEN id END",
        "started_at": "now()",
        "published_at": "now()",
    }
    run = make_run()
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO ravi_run ({', '.join(columns)}) SELECT {', '.join(values.values())}"
            " FROM ravi_run, generate_series(1, %s) n",
            [runs, runs],
        )
        Run.objects.filter(id=run.id).update(status=Status.COMPLETED)
        for span, user in (("hour", "''"), ("day", "(n % 200)::text")):
            for model, outcome in (("''", "status"), ("'gpt' || n % 3", "'ok'")):
                cursor.execute(
                    'INSERT INTO ravi_rollup (span, start, tenant, agent, model, "user", outcome, bucket, count,'
                    " input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, unpriced)"
                    f" SELECT '{span}', date_trunc('{span}', finished_at, 'UTC'), '', agent, {model}, {user},"
                    f" {outcome}, 5 + n % 6, count(*), sum(100), 0, sum(10), 0, sum(0.01), 0"
                    " FROM (SELECT *, row_number() OVER () AS n FROM ravi_run) AS numbered"
                    " WHERE finished_at IS NOT NULL GROUP BY 1, 2, 4, 5, 6, 7, 8"
                )
        cursor.execute("ANALYZE ravi_run, ravi_rollup")
