"""How many requests wait for whoever looks: in the admin's index, the app's list, and the list of the inbox itself.

A row of the index is called by its model's plural, which is the same for all; templates of the index are a theme's to
override, not an app's. So the number is added to what the site's `get_app_list` returns, which stock and themed admins
show alike. On other pages nothing is counted: there the script tells it.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest

from ravi_django.admin import readers
from ravi_django.models import HumanRequest

MOST = 100  # counted up to here
PAGES = ("index", "app_list", "ravi_humanrequest_changelist")


def pending(request: HttpRequest) -> int:
    """How many pending requests the user may answer, MOST at the most. Counted once a page."""
    return min(MOST, sum(bool(row["mine"]) for row in readers.glance(request)))


def is_told_on(request: HttpRequest) -> bool:
    return getattr(request.resolver_match, "url_name", None) in PAGES


def shown(count: int) -> str:
    return f"{MOST - 1}+" if count >= MOST else str(count)


def add_to(site: AdminSite) -> None:
    """Let the site's lists of apps tell the number. A second time it changes nothing."""
    if getattr(site, "_ravi_counts", False):
        return
    get_app_list = site.get_app_list

    def counted(request: HttpRequest, *args: Any, **options: Any) -> list[Any]:
        apps = get_app_list(request, *args, **options)
        if is_told_on(request):
            _count(request, apps)
        return apps

    site.get_app_list = counted  # type: ignore[method-assign]
    site._ravi_counts = True  # type: ignore[attr-defined]


def _count(request: HttpRequest, apps: list[Any]) -> None:
    for app in apps:
        for model in app["models"]:
            if model.get("model") is HumanRequest and (count := pending(request)):
                model["name"] = f"{model['name']} ({shown(count)})"
