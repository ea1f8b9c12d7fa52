import os
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management.base import BaseCommand
from django.db import transaction

from project import feeds


class Command(BaseCommand):
    help = (
        "Make the demo's users, demo/demo and ada/ada (ordinary), staff/staff (approves) and admin/admin (superuser), "
        "the sources of its newsrooms at FEED_SERVER_URL, and what the users follow at first. Safe to repeat."
    )

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        users = {name: self._user(name, {}) for name in ("demo", "ada")}
        emit = Permission.objects.get(content_type__app_label="ravi", codename="emit_topic")
        for user in users.values():  # the demo's page of news publishes notes
            user.user_permissions.add(emit)
        self._user("staff", {"is_staff": True})
        self._user("admin", {"is_staff": True, "is_superuser": True})
        feeds.seed(users, os.environ.get("FEED_SERVER_URL", ""))
        self.stdout.write("users: demo/demo, ada/ada, staff/staff, admin/admin")

    def _user(self, name: str, flags: dict[str, bool]) -> Any:
        user, created = get_user_model().objects.get_or_create(username=name, defaults=flags)
        if created:
            user.set_password(name)
            user.save(update_fields=["password"])
        return user
