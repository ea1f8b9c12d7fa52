"""What comes from outside: whose it is, and that it comes once."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

API = "tests/acceptance/api/"
WS = "tests/acceptance/ws/"

OWNERS = [
    Mutant(
        "owner: the run of a REST address",
        "ravi_django/api/lookup.py",
        "Run.objects.for_user(request.user)",
        "Run.objects.all()",
        (API + "test_api_access.py",),
    ),
    Mutant(
        "owner: the session of a REST address",
        "ravi_django/api/lookup.py",
        "Session.objects.for_user(request.user)",
        "Session.objects.all()",
        (API + "test_api_access.py",),
    ),
    Mutant(
        "owner: the list of runs",
        "ravi_django/api/runs.py",
        "Run.objects.for_user(request.user).filter(",
        "Run.objects.filter(",
        (API + "test_api_access.py",),
    ),
    Mutant(
        "owner: the list of sessions",
        "ravi_django/api/sessions.py",
        "Session.objects.for_user(request.user)",
        "Session.objects",
        (API + "test_api_access.py",),
    ),
    Mutant(
        "owner: the run of a socket",
        "ravi_django/ws/run.py",
        "Run.objects.for_user(self.user).select_related",
        "Run.objects.select_related",
        (WS + "test_ws_refusals.py",),
    ),
    Mutant(
        "owner: the session of a socket",
        "ravi_django/ws/session.py",
        "Session.objects.for_user(self.user).filter(id=session_id)",
        "Session.objects.filter(id=session_id)",
        (WS + "test_ws_refusals.py",),
    ),
    Mutant(
        "owner: the origin of a socket's page",
        "ravi_django/ws/access.py",
        "if not origin_allowed(scope):",
        "if False:",
        (WS + "test_ws_refusals.py",),
    ),
    Mutant(
        "owner: an origin's scheme and port count",
        "ravi_django/ws/access.py",
        "(scheme, port) == (origin[0], origin[2]) and is_same_domain",
        "is_same_domain",
        (WS + "test_ws_refusals.py",),
    ),
    Mutant(
        "owner: a socket ends with its credential",
        RUNTIME + "openings.py",
        "elif opening.credential in gone or not _is_proof(opening.credential, user):",
        "elif False:",
        (WS + "test_ws_revocation.py",),
    ),
    Mutant(
        "owner: a socket ends with the right to its run",
        RUNTIME + "openings.py",
        "if row is None or not row.is_for(user) or",
        "if row is None or",
        (WS + "test_ws_revocation.py",),
    ),
    Mutant(
        "limit: a call over it is refused",
        RUNTIME + "limits.py",
        "_added(name, user.pk, 1) <= most or",
        "_added(name, user.pk, 1) <= most + 1 or",
        (API + "test_api_limits.py",),
    ),
    Mutant(
        "limit: a user's deliveries count",
        STORE + "fan_out.py",
        'limits.take(user, "emit_deliveries", size), 0',
        "size, 0",
        (API + "test_api_limits.py",),
    ),
    Mutant(
        "limit: a place expires with its process",
        RUNTIME + "limits.py",
        "cache.add(key, 1, timeout=OPEN_S)",
        "cache.add(key, 1, timeout=None)",
        (API + "test_api_limits.py",),
    ),
    Mutant(
        "owner: the session that is submitted to",
        RUNTIME + "submit.py",
        "Session.objects.for_user(owner)",
        "Session.objects.all()",
        (UNIT + "test_submit.py",),
    ),
    Mutant(
        "owner: the run whose events are read in process",
        RUNTIME + "events.py",
        "Run.objects.for_user(user)",
        "Run.objects",
        (UNIT + "test_topics.py",),
    ),
    Mutant(
        "ticket: used once",
        RUNTIME + "tickets.py",
        "if deleted and row.user.is_active and not is_gone",
        "if row.user.is_active and not is_gone",
        (API + "test_api_tickets.py",),
    ),
    Mutant(
        "ticket: not for long",
        RUNTIME + "tickets.py",
        "filter(id=_hash(ticket), expires_at__gt=clock.now())",
        "filter(id=_hash(ticket))",
        (API + "test_api_tickets.py",),
    ),
]

SUBMIT = [
    Mutant(
        "idempotency: the key belongs to its user",
        RUNTIME + "submit.py",
        "f\"{getattr(owner, 'pk', None)}\\0{place}\\0{key}\"",
        'f"{place}\\0{key}"',
        (UNIT + "test_submit.py",),
    ),
    Mutant(
        "idempotency: another body is a mismatch",
        RUNTIME + "submit.py",
        "first.request_digest != run.request_digest",
        "False",
        (UNIT + "test_submit.py",),
    ),
    Mutant(
        "submit: the hint waits for the commit",
        RUNTIME + "dispatch.py",
        "transaction.on_commit(lambda: _guarded(send_hint or send, run_id), robust=True)",
        "_guarded(send_hint or send, run_id)",
        (UNIT + "test_submit.py",),
    ),
    Mutant(
        "queue: the lock of the session",
        STORE + "queue.py",
        "    if not lock_session(run):\n        raise SessionNotFoundError(run.session_id)\n"
        "    if run.parent_id is None and _has_root_before(run):",
        "    if run.parent_id is None and _has_root_before(run):",
        (UNIT + "test_store_settle.py",),
    ),
    Mutant(
        "queue: one active root",
        STORE + "queue.py",
        "if run.parent_id is None and _has_root_before(run):",
        "if False:",
        (UNIT + "test_store_settle.py",),
    ),
    Mutant(
        "queue: behind one that nobody has promoted yet",
        STORE + "queue.py",
        """(_ACTIVE, "'queued'")""",
        "(_ACTIVE,)",
        (UNIT + "test_session_locks.py",),
    ),
    Mutant(
        "queue: the end of a run promotes the next",
        STORE + "journal.py",
        "return first, [*hints, *promote(run)]",
        "return first, hints",
        (UNIT + "test_store_settle.py",),
    ),
]
