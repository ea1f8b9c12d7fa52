"""A site that leaves wings out by RAVI["WINGS"]: what they have is absent, and the core works."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ravi_django import wing
from ravi_django.checks import check_wings
from tests.support import forks
from tests.support.patience import BOUND_S

PAGES = {
    "runs/": "",
    "follows/": "feeds",
    "topics/news/x/emit/": "feeds",
    "v1/models": "protocols",
    "agui/react/echo/": "protocols",
}
PUBLIC = {
    "ravi_django.submit": "",
    "ravi_django.emit": "feeds",
    "ravi_django.agents.PersonalFeedAgent": "feeds",
    "ravi_django.schedules.schedule": "feeds",
    "ravi_django.sources.add_source": "feeds",
    "ravi_django.events.get_bus": "events",
    "ravi_django.middleware.PIIRedaction": "guards",
}
ADMIN = {"Run": "", "Follow": "feeds", "Schedule": "feeds", "Source": "feeds"}
SITE = """
import json, sys, django
from django.conf import settings
wings, pages, public = map(json.loads, sys.argv[1:])
settings.configure(
    SECRET_KEY="x", USE_TZ=True, ROOT_URLCONF="__main__", ALLOWED_HOSTS=["testserver"], STATIC_URL="static/",
    INSTALLED_APPS=[
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
        "django.contrib.sessions", "channels", "rest_framework", "ravi_django",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": ["django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth", "django.contrib.messages.context_processors.messages"]}}],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"}}},
    RAVI={"ENGINE": "manual", "WINGS": wings, "EVENT_BUS": "memory"},
)
django.setup()
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.urls import include, path
from django.utils.module_loading import import_string
from ravi_django import register, submit
from ravi_django.agents import ReActAgent
from ravi_django.kernel import AgentId, UnsupportedError
from ravi_django.models import OutboxEvent
from ravi_django.testing import ScriptedModel, run_until_idle

urlpatterns = [path("admin/", admin.site.urls), path("ravi/", include("ravi_django.urls"))]


class Speaker:
    id = AgentId("a", "speaker")

    async def run(self, ctx, inbox):
        await ctx.emit("news/x", "hi")


def loaded(name):
    try:
        return import_string(name) and ""
    except UnsupportedError as error:
        return str(error)


call_command("check")
call_command("migrate", verbosity=0)
register(ReActAgent("echo", model=ScriptedModel(["Done."])))
register(Speaker())
ada = get_user_model().objects.create(username="ada", is_superuser=True, is_staff=True)
runs = [submit(agent, "hi", user=ada) for agent in ("react/echo", "a/speaker")]
run_until_idle()
call_command("ravi_sweep")
client = Client()
client.force_login(ada)
for run in runs:
    run.refresh_from_db()
print(json.dumps({
    "absent": [page for page in pages if client.get(f"/ravi/{page}").status_code == 404],
    "admin": [model.__name__ for model in admin.site._registry],
    "imported": [name for name in sys.modules if name.startswith("ravi_django.wings.")],
    "public": {name: loaded(name) for name in public},
    "runs": [run.status for run in runs],
    "error": (runs[1].error or {}).get("message", ""),
    "events": OutboxEvent.objects.count(),
}))
"""


# Each wing is absent from one of these sites and there in the other. No wing imports another: see import-linter.
HALVES = [[*wing.NAMES[::2]], [*wing.NAMES[1::2]]]


@pytest.mark.parametrize(
    "left_out", [*(pytest.param(half, marks=pytest.mark.full) for half in HALVES), [*wing.NAMES]], ids=",".join
)
def test_what_a_wing_has_is_absent_where_it_is_left_out(left_out: list[str], tmp_path: Path) -> None:
    site = _site(tmp_path, [name for name in wing.NAMES if name not in left_out])

    assert site["absent"] == [page for page, of in PAGES.items() if of in left_out]
    assert [model for model in ADMIN if model not in site["admin"]] == [m for m, of in ADMIN.items() if of in left_out]
    assert [name for name in site["imported"] if name.split(".")[2] in left_out and name.count(".") > 2] == [
        f"ravi_django.wings.{name}.wing" for name in wing.NAMES if name in left_out
    ], "neither the sweep nor anything else needs it"
    for name, of in PUBLIC.items():
        assert site["public"][name] == (_lacks(name, of) if of in left_out else "")
    assert site["runs"] == ["completed", "failed" if "feeds" in left_out else "completed"]
    assert site["error"] == (_lacks("ctx.emit", "feeds") if "feeds" in left_out else "")
    assert site["events"] == 0 if "events" in left_out else True


def _lacks(name: str, of: str) -> str:
    return f"{name} needs the wing {of!r}, which RAVI['WINGS'] leaves out"


def _site(folder: Path, wings: list[str]) -> dict[str, Any]:
    arguments = map(json.dumps, (wings, list(PAGES), list(PUBLIC)))
    env = {"PYTHONPATH": str(Path.cwd()), "PATH": os.environ["PATH"]}
    argv = ["-c", SITE, *arguments]
    done = forks.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    site: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return site


def test_an_unknown_wing_is_named_with_those_that_there_are(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "WINGS": ["feed", "guards"]}

    (fault,) = check_wings()

    assert fault.id == "ravi.E039" and "'feed'. Did you mean 'feeds'?" in fault.msg
    assert all(name in str(fault.hint) for name in wing.NAMES)


def test_all_that_wings_register_is_there() -> None:
    for one in wing.known().values():
        points = [getattr(one, point.name) for point in fields(one) if point.name != "name"]
        assert all(callable(one.load(path)) for paths in points for path in paths.values())
