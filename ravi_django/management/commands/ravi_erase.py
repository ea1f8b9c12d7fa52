"""`manage.py ravi_erase`: delete what a user has in this app."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ravi_django.management.people import user_named
from ravi_django.runtime import erasing


class Command(BaseCommand):
    help = (
        "Erase the personal data of a user: sessions with all their runs, requests, follows, schedules and sources; "
        "the name goes from other people's rows. The account stays. Deleting a user does the same. Live runs "
        "are cancelled; the sweep erases what still ran. Cannot be undone: see ravi_export."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("user", help="by the user model's USERNAME_FIELD")

    def handle(self, *args: Any, user: str, **options: Any) -> None:
        if erasing.erase_user(user_named(user)):
            self.stdout.write(f"ravi_erase: the data of {user} is erased")
        else:
            raise CommandError(f"runs of {user} have not ended yet; they are cancelled, and the sweep erases the rest")
