"""Additions to the admin's index: the number of requests that the user may answer, and the link to the dashboard.

The index calls a row by its model's plural, and its templates belong to the theme. So both are added to the result of
the site's `get_app_list`, which stock and themed admins show alike. On other pages the script shows the number.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import NoReverseMatch
from django.utils.translation import gettext

from ravi_django.admin import readers
from ravi_django.models import HumanRequest
from ravi_django.runtime.people import links

MOST = 100  # counted up to here
PAGES = ("index", "app_list", "ravi_humanrequest_changelist")


def pending(request: HttpRequest) -> int:
    """How many pending requests the user may answer, at most MOST. Counted once a page."""
    return min(MOST, sum(bool(row["mine"]) for row in readers.glance(request)))


def is_counted_on(request: HttpRequest) -> bool:
    return getattr(request.resolver_match, "url_name", None) in PAGES


def shown(count: int) -> str:
    return f"{MOST - 1}+" if count >= MOST else str(count)


def add_to(site: AdminSite) -> None:
    """Add both to the site's lists of apps. A second call changes nothing."""
    if getattr(site, "_ravi_counts", False):
        return
    get_app_list = site.get_app_list

    def counted(request: HttpRequest, *args: Any, **options: Any) -> list[Any]:
        apps = get_app_list(request, *args, **options)
        for app in apps:
            if app["app_label"] == HumanRequest._meta.app_label and request.user.has_perm("ravi.view_run"):
                app["models"][:0] = _dashboard()
        for app in apps if is_counted_on(request) else ():
            for model in app["models"]:
                if model.get("model") is HumanRequest and (count := pending(request)):
                    model["name"] = f"{model['name']} ({shown(count)})"
        return apps

    site.get_app_list = counted  # type: ignore[method-assign]
    site._ravi_counts = True  # type: ignore[attr-defined]


def _dashboard() -> list[dict[str, Any]]:
    """The dashboard in the form of a model; nothing without the app's URLs."""
    try:
        address = links.path_to("dashboard")
    except NoReverseMatch:
        return []
    name, may = gettext("Dashboard"), {"add": False, "change": False, "delete": False, "view": True}
    row = {"name": name, "object_name": "Dashboard", "admin_url": address, "add_url": None, "perms": may}
    return [{**row, "view_only": True}]
