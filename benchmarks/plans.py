"""Print the plans of the claim, the sweep and the append over 200,000 runs: `python -m benchmarks.plans`."""

from __future__ import annotations

from benchmarks.stack import servers, set_up_site

STATES = (("completed", 198_000), ("running", 400), ("pending", 500), ("suspended", 1_000), ("queued", 100))


def fill() -> None:
    from django.db import connection

    from ravi_django.models import Session

    session = Session.objects.create().id
    with connection.cursor() as cursor:
        for status, count in STATES:
            cursor.execute(
                "INSERT INTO ravi_run (id, agent, session_id, depth, status, priority, metadata, lease_owner,"
                " lease_epoch, lease_expires_at, finished_at, published_at, tenant, cancel_reason, request_digest,"
                " attempts, crashes, hints, release, generation, next_seq, next_turn, input_tokens, cached_tokens,"
                " output_tokens, reasoning_tokens, cost, cost_unknown, usage_estimated, event_mark)"
                " SELECT gen_random_uuid(), 'react/' || left(%s, 1) || n, %s, 0, %s, 2, '{}', 'w', 1,"
                " CASE WHEN %s = 'running' THEN now() + (n - 100) * interval '1 second' END,"
                " CASE WHEN %s = 'completed' THEN now() END,"
                " CASE WHEN %s = 'completed' AND n > 50 THEN now() END,"
                " '', '', '', 0, 0, 0, '', 0, 1, 0, 0, 0, 0, 0, 0, false, false, 0 FROM generate_series(1, %s) n",
                [status, session, status, status, status, status, count],
            )
        cursor.execute("INSERT INTO ravi_afterlease SELECT id FROM ravi_run WHERE status = 'completed' LIMIT 50")
        cursor.execute("ANALYZE ravi_run, ravi_afterlease")


def show(title: str, plan: str) -> None:
    print(f"{title}\n\n" + "\n".join(f"    {line}" for line in plan.splitlines()) + "\n")


def main() -> None:
    with servers():
        set_up_site()
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        from ravi_django.engine.lease import claims
        from ravi_django.live.streams import republish
        from ravi_django.models import Run
        from ravi_django.runs import sessions

        fill()
        one = Run.objects.filter(status="running").values_list("id", flat=True)[0]
        agents = [f"react/p{number}" for number in range(20)]
        with CaptureQueriesContext(connection) as captured, connection.cursor() as cursor:
            claims.claim_batch("w", agents, 16)
            cursor.execute("EXPLAIN " + captured[0]["sql"])
            look = "\n".join(row[0] for row in cursor.fetchall())
        show("The next run for a worker with room", look[look.index("Append") : look.index("CTE taken")])
        show("A run that was hinted", Run.objects.filter(claims.claimable(), id=one).explain())
        show("The sweep: expired leases", claims.expired()[:500].explain())
        show("The sweep: runs without a hint", claims.ready()[:500].explain())
        with CaptureQueriesContext(connection) as captured, connection.cursor() as cursor:
            sessions.orphans(500)
            cursor.execute("EXPLAIN " + captured[0]["sql"])
            show("The sweep: queued runs that were not promoted", "\n".join(row[0] for row in cursor.fetchall()))
        show("The sweep: ended trees whose last frame may not be sent", republish.unpublished_trees(0)[:50].explain())
        with connection.cursor() as cursor:
            cursor.execute(
                "EXPLAIN UPDATE ravi_run SET next_seq = next_seq + 1 "
                "WHERE id = %s AND lease_epoch = 1 AND lease_owner = 'w'",
                [one],
            )
            show("The fence of every append", "\n".join(row[0] for row in cursor.fetchall()))
        connection.close()


if __name__ == "__main__":
    main()
