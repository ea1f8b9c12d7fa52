"""`manage.py ravi_erase`: delete a user's rows of this app."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ravi_django.engine.worker import health
from ravi_django.management.people import user_named
from ravi_django.runs.lifecycle import erasing


class Command(BaseCommand):
    help = (
        "Erase the personal data of a user: sessions with all their runs, requests, follows, schedules and sources. "
        "The user's name is removed from other people's rows. The account stays. Deleting a user does the same. Live "
        "runs are cancelled, and the sweep erases them later. This cannot be undone: see ravi_export."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("user", help="by the user model's USERNAME_FIELD")

    def handle(self, *args: Any, user: str, **options: Any) -> None:
        if erasing.erase_user(user_named(user)):
            self.stdout.write(f"ravi_erase: the data of {user} is erased")
        else:
            text = "rows are left: some runs have not ended (the user's own are cancelled), or a row was not deletable"
            raise CommandError(f"{text}, and the sweep erases the rest{_without_worker()}")


def _without_worker() -> str:
    try:
        health.worker()
    except health.Unhealthy as problem:
        return f"; {problem}"
    return ""
