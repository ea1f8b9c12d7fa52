"""`manage.py ravi_requests`: requests to people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from ravi_django.engine.db import clock
from ravi_django.management.people import user_named
from ravi_django.management.transcript import details_of, printable
from ravi_django.models import HumanRequest
from ravi_django.people import rights
from ravi_django.services.request_shapes import RequestSerializer, marked

ALL = "all"
BATCH = 200  # rows that are read and checked at once


class Command(BaseCommand):
    help = "List the requests that wait for a person, oldest first; ravi_answer answers one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--status", default="pending", choices=[*HumanRequest.Status.values, ALL])
        parser.add_argument("--user", metavar="NAME", help="only requests that this user may or could answer")
        parser.add_argument("--limit", type=int, default=50)
        parser.add_argument("--json", action="store_true", help="one request a line, as in REST")

    def handle(self, *args: Any, status: str, limit: int, **options: Any) -> None:
        user = user_named(options["user"])
        requests = _requests(status, user, max(limit, 0))
        for row in requests:
            if options["json"]:
                self.stdout.write(json.dumps(RequestSerializer(row).data, ensure_ascii=False))
            else:
                self.stdout.write(printable(_as_text(row)))
        if not requests and not options["json"]:
            self.stdout.write(f"no {'' if status == ALL else f'{status} '}requests")


def _requests(status: str, user: Any, limit: int) -> list[Any]:
    rows = HumanRequest.objects.all() if user is None else rights.answerable(user)
    if status != ALL:
        rows = rows.filter(status=status)
    listed = rows.select_related("run", "answered_by").order_by("id").iterator(BATCH)
    allowed = listed if user is None else _open_to(user, listed)
    return list(marked(list(islice(allowed, limit)), user))


def _open_to(user: Any, rows: Iterator[HumanRequest]) -> Iterator[HumanRequest]:
    """Rows that the user may answer, also by RAVI["MAY_ANSWER"]."""
    while batch := list(islice(rows, BATCH)):
        theirs = rights.open_among(user, batch)
        yield from (row for row in batch if row.id in theirs)


def _as_text(row: HumanRequest) -> str:
    """A line with the main facts, and the details below it."""
    parts = [
        str(row.id),
        f"{row.created_at:%Y-%m-%d %H:%M:%S}",
        _age(row),
        str(row.kind),
        *([row.risk] if row.risk else []),
        *([] if row.status == HumanRequest.Status.PENDING else [str(row.status)]),
        f"to {row.to}",
        f"{row.run.agent} {row.run_id}",
    ]
    if row.tool and row.kind != HumanRequest.Kind.QUESTION:
        parts.append(f"{row.tool}({json.dumps(row.arguments, ensure_ascii=False)})")
    return "\n    ".join(["  ".join(parts), *_details(row)])


def _age(row: HumanRequest) -> str:
    """The age in its largest unit."""
    seconds = max(0, int(((clock.fixed() or timezone.now()) - row.created_at).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _details(row: HumanRequest) -> list[str]:
    details = [row.text] if row.text else []
    details += details_of({**row.about, "choices": row.choices})
    if row.escalates_at and row.status == HumanRequest.Status.PENDING:
        details.append(f"from {row.escalates_at:%Y-%m-%d %H:%M:%S} UTC on the next address is asked")
    if row.expires_at:
        details.append(f"until {row.expires_at:%Y-%m-%d %H:%M:%S} UTC")
    return details
