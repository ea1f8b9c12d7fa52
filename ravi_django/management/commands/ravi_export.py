"""`manage.py ravi_export`: a user's rows of this app, as JSON."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand
from django.core.serializers.json import DjangoJSONEncoder

from ravi_django.management.people import user_named
from ravi_django.runs.lifecycle import erasing


class Command(BaseCommand):
    help = "Print a JSON list of all rows that ravi_erase would delete or reduce, except tickets, as dumpdata does."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("user", help="by the user model's USERNAME_FIELD")

    def handle(self, *args: Any, user: str, **options: Any) -> None:
        before = "["
        for row in erasing.export(user_named(user)):
            self.stdout.write(before + json.dumps(row, cls=DjangoJSONEncoder, ensure_ascii=False), ending="")
            before = ",\n"
        self.stdout.write("]" if before != "[" else "[]")
