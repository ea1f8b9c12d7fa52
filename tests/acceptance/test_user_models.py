"""Erasing on a site whose users have UUID keys, log in by e-mail, and have no username."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MODELS = """
import uuid
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models

class Person(AbstractBaseUser, PermissionsMixin):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    USERNAME_FIELD = "email"
    objects = BaseUserManager()
"""
SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "channels", "rest_framework", "ravi_django", "people"
]
AUTH_USER_MODEL = "people.Person"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
RAVI = {"ENGINE": "inline"}
USE_TZ = True
"""
STORY = """
import django; django.setup()
from django.core.management import call_command
call_command("migrate", run_syncdb=True, verbosity=0)
from django.contrib.auth import get_user_model
from ravi_django.models import *
from ravi_django.runtime import erasing
ada, bob = (get_user_model().objects.create(email=f"{name}@example.com") for name in ("ada", "bob"))
for user in (ada, bob):
    session = Session.objects.create(owner=user, title=user.email)
    run = Run.objects.create(owner=user, agent="a/b", session=session, status="cancelled")
    HumanRequest.objects.create(run=run, owner=user, path="p", kind="question", to="user:ada@example.com")
    ids = {"key": str(run.id), "run_id": run.id, "session_id": session.id}
    AuditRecord.objects.create(owner=user, event="run", agent="a/b", detail={"reason": "x"}, **ids)
call_command("ravi_export", "ada@example.com")
get_user_model().objects.filter(email="ada@example.com").delete()
erasing.sweep()
print(sorted((record.owner_id == bob.pk, record.detail.get("reason")) for record in AuditRecord.objects.all()))
to = HumanRequest.objects.get().to
print(Session.objects.get().title, to.startswith("user:deleted-"), Erasure.objects.count())
"""


def test_a_user_with_a_uuid_and_without_a_username(tmp_path: Path) -> None:
    people = tmp_path / "people"
    people.mkdir()
    (people / "__init__.py").touch()
    (people / "models.py").write_text(MODELS)
    (tmp_path / "site_settings.py").write_text(SETTINGS)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])])
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "site_settings", "PYTHONPATH": paths}

    done = subprocess.run([sys.executable, "-c", STORY], cwd=tmp_path, env=env, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    *_, audits, rest = done.stdout.splitlines()
    assert audits == "[(False, None), (True, 'x')]"
    assert rest == "bob@example.com True 0"
    assert done.stdout.count("ada@example.com") == 2  # the title and the address, in the export
