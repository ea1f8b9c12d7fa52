"""`manage.py ravi_schedules`: the schedules, with their last and next run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import OuterRef, Subquery

from ravi_django.management.transcript import printable
from ravi_django.models import Schedule, ScheduleTick
from ravi_django.pages.formats import moment


class Command(BaseCommand):
    help = "List the schedules: rule, next and last run, and the error of the last tick."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--enabled", action="store_true", help="only enabled ones")

    def handle(self, *args: Any, **options: Any) -> None:
        last = ScheduleTick.objects.filter(schedule=OuterRef("pk"), error="").order_by("-at")  # those that ran
        rows = Schedule.objects.select_related("owner").annotate(
            ran_at=Subquery(last.values("at")[:1]), last_status=Subquery(last.values("run__status")[:1])
        )
        if options["enabled"]:
            rows = rows.filter(enabled=True)
        has_rows = False
        for row in rows.order_by("name", "id").iterator(500):
            has_rows = True
            self.stdout.write(printable(_as_text(row)))
        if not has_rows:
            self.stdout.write("no schedules")


def _as_text(row: Any) -> str:
    rule = f"{row.cron} {row.timezone}".strip() if row.cron else f"every {row.every_s} s"
    coming = f"next {moment(row.next_at)}" if row.enabled else "off"
    parts = [row.name, row.agent, rule, coming, f"last run {moment(row.ran_at)} {row.last_status or ''}".strip()]
    if row.last_at != row.ran_at:
        parts.append(f"last tick {moment(row.last_at)}")
    parts.append(f"owner {row.owner}" if row.owner else "of the system")
    return "  ".join([*parts, *([f"error: {row.error}"] if row.error else [])])
