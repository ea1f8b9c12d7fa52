"""What the doctor says about sources and schedules."""

from __future__ import annotations

from collections.abc import Iterator

from ravi_django.conf import conf
from ravi_django.engine.db import clock
from ravi_django.kernel.visible import visible
from ravi_django.management.diagnosis import LISTED, Finding, has_table
from ravi_django.models import Schedule, Source
from ravi_django.models.schedules import SESSION_GONE


def sources() -> Iterator[Finding]:
    """Sources with an error."""
    rows = Source.objects.filter(enabled=True)
    if not has_table(Source) or not (count := rows.count()):
        return
    bad = rows.exclude(error="") | rows.filter(kind=Source.Kind.WEBHOOK, secret="")
    yield Finding("ok", f"sources: {count} enabled")
    for source in bad.order_by("-failures", "id")[:LISTED]:
        why = " ".join(visible(source.error).split())[:300] or "it has no secret, so it rejects all posts"
        often = f", {source.failures} times in a row" if source.failures > 1 else ""
        fix = f"fix or disable it in the admin: source {source.id}"
        yield Finding("warning", f"sources: {source}{often}: {why}", fix)
    if (more := bad.count() - LISTED) > 0:
        yield Finding("warning", f"sources: {more} more have an error", "see the list of sources in the admin")


def schedules() -> Iterator[Finding]:
    """Schedules that submit nothing."""
    if not has_table(Schedule):
        return
    on = Schedule.objects.filter(enabled=True)
    patience = max(60.0, 10 * conf.SWEEP_S)
    problems = (
        ("in error", on.exclude(error=""), "see their errors in the admin, or in manage.py ravi_schedules"),
        (
            f"overdue for more than {patience:g} s",
            on.filter(due_at__lt=clock.after(-patience)),
            "run the sweep: celery -A <site> beat, or manage.py ravi_worker",
        ),
        ("on, and without a next tick", on.filter(due_at=None), "enable them, or save them in the admin"),
        (
            "off, since their conversation was deleted",
            Schedule.objects.filter(enabled=False, error=SESSION_GONE),
            "delete them, or choose another conversation and enable them",
        ),
    )
    fine = True
    for what, rows, fix in problems:
        if count := rows.count():
            fine = False
            names = ", ".join(repr(name) for name in rows.order_by("id").values_list("name", flat=True)[:5])
            yield Finding("warning", f"schedules: {count} {what}: {names}{', …' if count > 5 else ''}", fix)
    if fine and (count := on.count()):
        yield Finding("ok", f"schedules: {count} enabled")
