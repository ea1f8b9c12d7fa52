"""A Django site made from a row of the table, as the text of its files: alone, and with the app installed.

`mysite.before` has the settings of the site alone, and `mysite.settings` what README adds to them. Virtual environments
for sites with another Django are kept in `.cache/sites/`; `make clean` removes them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.sites.table import Row
from tests.support import forks
from tests.support.patience import BOUND_S

BEFORE = """
SECRET_KEY = "x" * 50
ALLOWED_HOSTS = ["127.0.0.1"]
USE_TZ = True
ROOT_URLCONF = "mysite.before_urls"
STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
INSTALLED_APPS = [{theme}
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
    "django.contrib.sessions", "django.contrib.staticfiles", "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware", "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware", {csp}
]
TEMPLATES = [{{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {{
    "context_processors": ["django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                           "django.contrib.messages.context_processors.messages"]}}}}]
JAZZMIN_SETTINGS = {{"use_google_fonts_cdn": False}}
DATABASES = {databases}
DATABASE_ROUTERS = {routers}
AUTH_USER_MODEL = {user_model!r}
"""
SETTINGS = """
from mysite.before import *
INSTALLED_APPS = [*INSTALLED_APPS, "channels", "rest_framework", "ravi_django"]
ROOT_URLCONF = "mysite.urls"
REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"]}
"""
BROKER = """
CELERY_BROKER_URL = {redis!r}
CELERY_BEAT_SCHEDULE = {{"ravi-sweep": {{"task": "ravi.sweep", "schedule": 5}}}}
CACHES = {{"default": {{"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": {redis!r}}}}}
CHANNEL_LAYERS = {{"default": {{
    "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {{"hosts": [{redis!r}]}}}}}}
"""
FILES = {
    "manage.py": """
import sys
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "mysite/__init__.py": "",
    "mysite/before_urls.py": """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
""",
    "mysite/urls.py": """
from django.urls import include, path
from mysite.before_urls import urlpatterns
urlpatterns = [*urlpatterns, path({mount!r}, include("ravi_django.urls"))]
""",
    "mysite/wsgi.py": """
from django.core.wsgi import get_wsgi_application
application = get_wsgi_application()
""",
    "mysite/asgi.py": """
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
django_application = get_asgi_application()
from ravi_django.routing import websocket_urlpatterns
application = ProtocolTypeRouter({"http": django_application, "websocket": URLRouter(websocket_urlpatterns)})
""",
    "mysite/policy.py": """
def strict(get_response):
    def respond(request):
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'; script-src 'self'; style-src 'self'"
        return response
    return respond
""",
    "mysite/router.py": """
class Router:
    def db_for_read(self, model, **hints):
        return "default" if model._meta.app_label in ("admin", "sessions") else "replica"
    def db_for_write(self, model, **hints):
        return "default"
    def allow_relation(self, one, other, **hints):
        return True
    def allow_migrate(self, db, app_label, **hints):
        return db == "default"
""",
    "shop/__init__.py": "",
    "shop/migrations/__init__.py": "",
    "shop/agents.py": '''
from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.integrations.llm import LLMFactory

@tool(risk="high", effect="at_most_once")
def send_invoice(customer: str, amount: float) -> str:
    """Send an invoice."""
    return f"An invoice of {amount:g} went to {customer}."

agent = ReActAgent("shop", model=LLMFactory("rehearsal").build(), tools=[send_invoice], approvers=["staff"])
register(agent, access="authenticated")
''',
}
CELERY = """
from celery import Celery
app = Celery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
USERS = {
    "django": "",
    "email": """
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models

class Person(AbstractBaseUser, PermissionsMixin):
    email = models.EmailField(unique=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    USERNAME_FIELD = "email"
    objects = BaseUserManager()
""",
    "uuid": """
import uuid
from django.contrib.auth.models import AbstractUser
from django.db import models

class Person(AbstractUser):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
""",
}
BEGIN = """
import django; django.setup()
from django.contrib.auth import get_user_model
from django.core.management import call_command
call_command("makemigrations", "shop", verbosity=0)
call_command("migrate", verbosity=0)
User = get_user_model()
for name, flags in (("root", {"is_staff": True, "is_superuser": True}), ("ada", {})):
    user = User(**{User.USERNAME_FIELD: f"{name}@example.com"}, **flags)
    user.set_password(name)
    user.save()
"""
INSTALL = """
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0, skip_checks=False)
call_command("check")
"""
LEAVE = """
import django; django.setup()
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection
from django.test import Client
call_command("check")
call_command("remove_stale_contenttypes", include_stale_apps=True, interactive=False, verbosity=0)
types = ContentType.objects.using("default").values_list("app_label", flat=True)
assert "ravi" not in f"{connection.introspection.table_names()} {[*types]}"
client = Client(SERVER_NAME="127.0.0.1")
assert client.login(username="root@example.com", password="root")
page = client.get("/admin/")
assert (page.status_code, b"ravi" in page.content.lower()) == (200, False), page.content
"""


class Site:
    """The files of a row's site in a folder, and its processes."""

    def __init__(self, row: Row, folder: Path, *, python: str, databases: dict[str, Any], redis: str) -> None:
        self.row, self.folder, self._python = row, folder, python
        has_model = row.users != "django"
        before = BEFORE.format(
            theme="" if row.admin == "stock" else f'"{row.admin}",',
            csp='"mysite.policy.strict",' if row.csp else "",
            databases=databases,
            routers=["mysite.router.Router"] if row.replica else [],
            user_model="shop.Person" if has_model else "auth.User",
        )
        files = FILES | {"mysite/before.py": before, "mysite/settings.py": SETTINGS, "shop/models.py": USERS[row.users]}
        files["mysite/urls.py"] = files["mysite/urls.py"].format(mount=row.mount)
        if row.has_broker:
            files["mysite/before.py"] += BROKER.format(redis=redis)
            files |= {"mysite/celery.py": CELERY, "mysite/__init__.py": "from mysite.celery import app as celery_app\n"}
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, *argv: str, settings: str = "mysite.settings") -> str:
        """`python *argv`; returns what it prints."""
        options = {"env": self._env(settings), "cwd": self.folder, "capture_output": True, "text": True}
        if self._python:
            done = subprocess.run([self._python, *argv], timeout=BOUND_S, **options)
        else:
            done = forks.run(list(argv), timeout=BOUND_S, **options)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return f"{done.stdout}{done.stderr}"

    def start(self, name: str, *argv: str) -> subprocess.Popen[Any]:
        options = {"env": self._env("mysite.settings"), "cwd": self.folder, "stderr": subprocess.STDOUT}
        with self.log(name).open("wb") as log:
            if self._python:
                return subprocess.Popen([self._python, *argv], stdout=log, **options)
            return forks.Popen(list(argv), stdout=log, **options)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _env(self, settings: str) -> dict[str, str]:
        kept = ("PATH", "HOME", "TMPDIR", "PYTHONPYCACHEPREFIX", "COVERAGE_PROCESS_CONFIG")
        given = {name: os.environ[name] for name in kept if name in os.environ}
        return given | {"DJANGO_SETTINGS_MODULE": settings, "PYTHONUNBUFFERED": "1"}


# --------------------------------------------------------------------------------- environments with another Django

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "sites"
OLDEST = {"6": (3, 12)}  # Python, by Django's major version


def python_of(django: str) -> str:
    """The Python of an environment with the app and that Django. Skips the test where the machine has none for it."""
    base = next(_pythons(OLDEST[django]), None)
    if base is None:
        pytest.skip(f"Django {django} needs Python {'.'.join(map(str, OLDEST[django]))} or newer")
    state = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + base.encode()).hexdigest()[:12]
    folder = CACHE / f"django{django}-{state}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            _install(base, folder, f"django~={django}.0")
    return str(folder / "bin" / "python")


def _install(base: str, folder: Path, django: str) -> None:
    for old in CACHE.glob(f"{folder.name.partition('-')[0]}-*/"):
        shutil.rmtree(old)
    subprocess.run([base, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "-e", ROOT, django, "whitenoise"], check=True, stderr=subprocess.DEVNULL)
    (folder / "installed").touch()


def _pythons(oldest: tuple[int, int]) -> Iterator[str]:
    """Those on the PATH and of pyenv; a shim of pyenv for a version that is switched off does not run."""
    names = [f"python3.{minor}" for minor in range(20, oldest[1] - 1, -1)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    places = [*filter(None, map(shutil.which, names))]
    places += [str(path) for name in names for path in pyenv.glob(f"{name.removeprefix('python')}.*/bin/python")]
    if sys.version_info >= oldest:
        yield sys.executable
    for place in places:
        if subprocess.run([place, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            yield place
