"""Admin sites other than Django's default one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.core.checks import CheckMessage, Warning, register
from django.urls import get_resolver

from ravi_django.models import Run


def register_on(site: AdminSite) -> None:
    """Register the app's models with `site` too. A second call changes nothing."""
    for model, found in list(admin.site._registry.items()):
        if model._meta.app_label == Run._meta.app_label and not site.is_registered(model):
            site.register(model, type(found))


@register("ravi")
def check_mounted(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    mounted = list(_mounted(get_resolver().url_patterns))
    if not mounted or any(site.is_registered(Run) for site in mounted):
        return []
    names = ", ".join(sorted({repr(site.name) for site in mounted}))
    hint = "In an admin.py: from ravi_django.admin import register_on; register_on(your_site)."
    return [Warning(f"The mounted admin site has no models of ravi_django: {names}.", hint=hint, id="ravi.W031")]


def _mounted(patterns: Any) -> Iterator[AdminSite]:
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _mounted(pattern.url_patterns)
        elif site := getattr(pattern.callback, "admin_site", None):
            yield site
