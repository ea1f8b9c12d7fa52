"""Sites with a user model of their own: UUID keys, e-mail logins, no `username`, names, permissions or `is_active`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import forks
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.full

IMPORTS = """
import uuid
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
"""
UUID_AND_EMAIL = """
class Person(AbstractBaseUser, PermissionsMixin):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    USERNAME_FIELD = "email"
    objects = BaseUserManager()
"""
NO_ACTIVE_FIELD = """
class Person(AbstractBaseUser, PermissionsMixin):
    handle = models.CharField(max_length=50, unique=True)
    email = models.EmailField()
    is_staff = models.BooleanField(default=False)
    USERNAME_FIELD = "handle"
    objects = BaseUserManager()
"""
NO_SUPERUSERS = """
class Person(AbstractBaseUser):
    email = models.EmailField(unique=True)
    is_active = models.BooleanField(default=True)
    is_admin = models.BooleanField(default=False)
    USERNAME_FIELD = "email"
    objects = BaseUserManager()
    is_staff = property(lambda self: self.is_admin)
    has_perm = has_module_perms = lambda self, *args: self.is_admin
"""
NO_PERMISSIONS = """
class Person(AbstractBaseUser):
    email = models.EmailField(unique=True)
    USERNAME_FIELD = "email"
    objects = BaseUserManager()
"""
SETTINGS = """
from celery import current_app
current_app.conf.broker_url = "memory://"
SECRET_KEY = "x"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
    "django.contrib.sessions", "channels", "rest_framework", "ravi_django", "people"
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
    "context_processors": ["django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                           "django.contrib.messages.context_processors.messages"]}}]
STATIC_URL = "static/"
ROOT_URLCONF = "site_urls"
ALLOWED_HOSTS = ["testserver"]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
AUTH_USER_MODEL = "people.Person"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3",
                         "OPTIONS": {"transaction_mode": "IMMEDIATE"}}}
RAVI = {"REQUEST_EMAIL": "https://example.com/"}
USE_TZ = True
"""
NO_MIGRATIONS = 'MIGRATION_MODULES = {"ravi": None}'
URLS = """
from django.contrib import admin
from django.urls import include, path
urlpatterns = [path("admin/", admin.site.urls), path("ravi/", include("ravi_django.urls"))]
"""
ERASED = """
import django; django.setup()
from django.core.management import call_command
call_command("migrate", run_syncdb=True, verbosity=0)
from django.contrib.auth import get_user_model
from ravi_django.models import *
from tests.support import world
ada, bob = (get_user_model().objects.create(email=f"{name}@example.com") for name in ("ada", "bob"))
for user in (ada, bob):
    session = Session.objects.create(owner=user, title=user.email)
    run = Run.objects.create(owner=user, agent="a/b", session=session, status="cancelled")
    HumanRequest.objects.create(run=run, owner=user, path="p", kind="question", to="user:ada@example.com")
    ids = {"key": run.id.hex, "run_id": run.id, "session_id": session.id}
    AuditRecord.objects.create(owner=user, event="run", agent="a/b", detail={"reason": "x"}, **ids)
call_command("ravi_export", "ada@example.com")
get_user_model().objects.filter(email="ada@example.com").delete()
world.erasing_sweep()
print(sorted((record.owner_id == bob.pk, record.detail.get("reason")) for record in AuditRecord.objects.all()))
to = HumanRequest.objects.get().to
print(Session.objects.get().title, to.startswith("user:deleted-"), Erasure.objects.count())
"""
SERVED = """
import django; django.setup()
import site_urls
from django.db import connection
print("connected at import:", connection.connection is not None)
from django.core.management import call_command
call_command("migrate", run_syncdb=True, verbosity=0)
from django.contrib.auth import get_user_model
from django.core import mail as sent
from django.test import Client
from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.models import *
from ravi_django.management import diagnosis
from tests.support import world
from ravi_django.testing import ScriptedModel, run_until_idle
from ravi_django.ws.auth import active
from tests.support.asked import approval_of
names = {get_user_model().USERNAME_FIELD: "ada@example.com", "email": "ada@example.com"}
fields = {field.name for field in get_user_model()._meta.fields}
flags = {name: True for name in ("is_staff", "is_superuser", "is_admin") if name in fields}
names = {name: value for name, value in names.items() if name in fields}
ada = get_user_model().objects.create(**names, **flags)
run = Run.objects.create(agent="a/b", session=Session.objects.create())
world.replace("mail_hint", lambda ids: None)  # or a thread sends the e-mail first
request = approval_of(run, "staff" if getattr(ada, "is_staff", False) else "user:ada@example.com")
print("mails:", world.mail_send(request.id), "ada@example.com" in sent.outbox[0].body, "socket:", active(ada.pk) == ada)
client = Client()
client.force_login(ada)
for page in ("agents", "runs", "requests", "follows", "usage"):
    print(page, client.get(f"/ravi/{page}/").status_code)
register(ReActAgent("echo", model=ScriptedModel(["Done."] * 2)), access="authenticated")
bodies = {
    "tickets": {}, "sessions": {}, "runs": {"agent": "react/echo", "input": "x"},
    "follows": {"agent": "react/echo", "topic": "news/x"}, "topics/news/x/emit": {"text": "x"},
}
for page, body in bodies.items():
    print("post", page, client.post(f"/ravi/{page}/", body, content_type="application/json").status_code)
for publication in Publication.objects.all():
    world.fan_out_run(publication.pk)
run_until_idle()
print("completed:", Run.objects.filter(status="completed", owner=ada).count())
print("sees all:", run in Run.objects.for_user(ada))
print("metrics", client.get("/ravi/metrics/").status_code)
world.replace("ADDRESSES_READ", 0)
print("doctor:", [finding.what for finding in diagnosis.people()])
if not hasattr(ada, "has_perm"):
    raise SystemExit
agent = {"address": "a/b", "model": "x", "system_instructions": "For {{ user.full_name }}.", "_preview": "Preview"}
preview = client.post("/admin/ravi/agent/add/", agent)
print("preview:", preview.status_code, "For ada@example.com." in preview.content.decode())
DailyBudget.objects.create(owner=ada, max_tokens=1)
pages = ("agent/", "source/add/", "schedule/add/", "dailybudget/?q=ada", "auditrecord/?q=ada", "run/?q=ada")
for page in (*pages, "humanrequest/?q=ada", "delegation/", "delegation/add/"):
    print(page, client.get(f"/admin/ravi/{page}").status_code)
bob = get_user_model().objects.create(**{name: "bob@example.com" for name in names})
client.post("/admin/ravi/delegation/add/", {"user": "ada@example.com", "delegate": "bob@example.com"})
print("delegations:", Delegation.objects.filter(user=ada, delegate=bob).count())
"""


def test_erasing_a_user_with_a_uuid_and_without_a_username(tmp_path: Path) -> None:
    *_, audits, rest = (lines := _site(tmp_path, UUID_AND_EMAIL, ERASED))

    assert audits == "[(False, None), (True, 'x')]"
    assert rest == "bob@example.com True 0"
    assert "\n".join(lines).count("ada@example.com") == 2  # the title and the address, in the export


ALL = {
    "uuid": UUID_AND_EMAIL,
    "no_active_field": NO_ACTIVE_FIELD,
    "no_superusers": NO_SUPERUSERS,
    "no_permissions": NO_PERMISSIONS,
}


@pytest.mark.parametrize("name", ALL)
def test_mails_rest_and_pages(tmp_path: Path, name: str) -> None:
    may = name != "no_permissions"
    said = _site(tmp_path, ALL[name], SERVED, migrates=not may)  # and that with UUIDs does above

    told = "people: a request to staff reads all active users, more than 0: their model has no field is_staff"
    assert said[:16] == [
        "connected at import: False",
        "mails: 1 True socket: True",
        *(f"{page} 200" for page in ("agents", "runs", "requests", "follows", "usage")),
        *(f"post {page} 201" for page in ("tickets", "sessions", "runs", "follows")),
        f"post topics/news/x/emit {202 if may else 403}",
        f"completed: {1 + may}",
        f"sees all: {may and name != 'no_superusers'}",
        f"metrics {200 if may else 403}",
        f"doctor: {[told] if name in ('no_superusers', 'no_permissions') else []}",
    ]
    pages = said[16:]
    if not may:  # Django's admin needs has_perm
        assert pages == []
    else:
        assert pages == [
            "preview: 200 True",
            *(f"{page} 200" for page in ("agent/", "source/add/", "schedule/add/")),
            *(f"{page}/?q=ada 200" for page in ("dailybudget", "auditrecord", "run", "humanrequest")),
            "delegation/ 200",
            "delegation/add/ 200",
            "delegations: 1",
        ]


def _site(tmp_path: Path, model: str, story: str, *, migrates: bool = True) -> list[str]:
    """What the story prints on a site with that user model; without migrations its tables are made at once."""
    people = tmp_path / "people"
    people.mkdir()
    (people / "__init__.py").touch()
    (people / "models.py").write_text(IMPORTS + model)
    (tmp_path / "site_settings.py").write_text(SETTINGS + ("" if migrates else NO_MIGRATIONS))
    (tmp_path / "site_urls.py").write_text(URLS)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])])
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "site_settings", "PYTHONPATH": paths}
    done = forks.run(["-c", story], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
