"""`manage.py ravi_requests`: what runs wait for people to decide."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ravi_django.models import HumanRequest


class Command(BaseCommand):
    help = "List the requests that wait for a person, the oldest first; ravi_answer answers one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--status", default="pending", choices=HumanRequest.Status.values)
        parser.add_argument("--limit", type=int, default=50)
        parser.add_argument("--json", action="store_true", help="one request a line")

    def handle(self, *args: Any, status: str, limit: int, **options: Any) -> None:
        rows = HumanRequest.objects.filter(status=status).select_related("run").order_by("id")[:limit]
        for row in rows:
            self.stdout.write(json.dumps(_shown(row), ensure_ascii=False) if options["json"] else _line(row))
        if not rows and not options["json"]:
            self.stdout.write(f"no {status} requests")


def _shown(row: HumanRequest) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "run": str(row.run_id),
        "root": str(row.run.tree_id),
        "agent": row.run.agent,
        "kind": row.kind,
        "status": row.status,
        "text": row.text,
        "choices": row.choices,
        "tool": row.tool,
        "arguments": row.arguments,
        "details": row.details,
        "created_at": row.created_at.isoformat(),
        "not_before": row.not_before and row.not_before.isoformat(),
        "expires_at": row.expires_at and row.expires_at.isoformat(),
    }


def _line(row: HumanRequest) -> str:
    head = f"{row.id}  {row.created_at:%Y-%m-%d %H:%M:%S}  {row.kind}  {row.run.agent} {row.run_id}"
    if row.kind == HumanRequest.Kind.QUESTION:
        return "\n    ".join([head, *_question(row)])
    call = f" {row.tool}({json.dumps(row.arguments, ensure_ascii=False)})" if row.tool else ""
    return "\n    ".join([head + call, *_question(row)])


def _question(row: HumanRequest) -> list[str]:
    found = [row.text]
    if row.about.get("context"):
        found.append(row.about["context"])
    if row.choices:
        rule = "for example: " if row.about.get("free_text", True) else "one of: "
        found.append(rule + " | ".join(row.choices))
    if row.expires_at:
        found.append(f"until {row.expires_at:%Y-%m-%d %H:%M:%S} UTC")
    return found
