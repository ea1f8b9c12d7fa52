"""`manage.py check`: models whose calls will fail, and what a server other than `runserver` does not do."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Info, Warning, register
from django.templatetags.static import static
from django.urls import Resolver404, resolve

from ravi_django.conf import conf

MODEL_IDS = {"UnknownModelError": "ravi.I002", "MissingKeyError": "ravi.I003"}
_CHECK = ["check"]  # the command that prints notes: others, such as ravi_run, are not interrupted by them
NOTES = (*MODEL_IDS.values(), "ravi.I004")  # the doctor looks at the models and workers themselves


@register("ravi")
def check_models(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Of registered agents; the doctor sees those in the database too. Another process may have the key."""
    from ravi_django.runtime.catalog import agent_models

    if sys.argv[1:2] != _CHECK or conf.ENGINE == "manual":  # tests call no model
        return []
    used = [one for one in agent_models.used(agent_models.in_code()) if one.fault]
    return [Info(f"{fault} ({', '.join(agents)})", id=MODEL_IDS[fault.error]) for _, fault, agents in used if fault]


@register("ravi")
def check_server(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    if settings.DEBUG or conf.ENGINE != "inline" or sys.argv[1:2] != _CHECK:
        return []
    text = "Under a server other than runserver the engine starts at the first request: runs and schedules wait for it."
    return [Info(text, hint="manage.py ravi_worker executes them from its start.", id="ravi.I004")]


@register("ravi")
def check_static_files(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Only `runserver` with DEBUG serves static files without configuration."""
    is_asgi = getattr(settings, "ASGI_APPLICATION", None) and not apps.is_installed("daphne")
    if conf.ENGINE == "manual" or (settings.DEBUG and (not is_asgi or sys.argv[1:2] == ["runserver"])):
        return []
    if settings.STATIC_ROOT or any("whitenoise" in name or "servestatic" in name for name in settings.MIDDLEWARE):
        return []
    address = urlsplit(static("ravi/ui.css"))
    if not conf.PAGES or address.netloc or _is_served(address.path):
        return []
    text = "Nothing serves the app's static files, but runserver: the pages have no styles, and the chat sends nothing."
    hint = 'STATIC_ROOT = BASE_DIR / "staticfiles" with manage.py collectstatic, and whitenoise or your web server.'
    return [Warning(text, hint=hint, id="ravi.W010")]


def _is_served(path: str) -> bool:
    """Whether the URLconf serves this file."""
    try:
        return resolve(path).func.__module__ in ("django.views.static", "django.contrib.staticfiles.views")
    except Resolver404:
        return False
