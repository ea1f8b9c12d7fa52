from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Make the demo's users: demo/demo (ordinary) and admin/admin (superuser). Safe to repeat."

    def handle(self, *args: Any, **options: Any) -> None:
        users = get_user_model().objects
        for name, flags in (("demo", {}), ("admin", {"is_staff": True, "is_superuser": True})):
            user, created = users.get_or_create(username=name, defaults=flags)
            if created:
                user.set_password(name)
                user.save(update_fields=["password"])
        self.stdout.write("users: demo/demo, admin/admin")
