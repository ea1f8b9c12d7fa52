"""The page "Response times": figures of requests by tool and address."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.models import HumanRequest
from ravi_django.pages import show
from ravi_django.runtime.people import figures
from ravi_django.runtime.people.figures import Figures

SPANS = {"1": _("24 hours"), "7": _("7 days"), "30": _("30 days"), "90": _("90 days")}  # of days
DEFAULT = "30"


def figures_view(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """For users who may read all requests. Raises PermissionDenied."""
    if not request.user.has_perm("ravi.view_humanrequest"):
        raise PermissionDenied
    chosen = request.GET.get("days", DEFAULT)
    days = chosen if chosen in SPANS else DEFAULT
    found = figures.figures(timezone.now() - timedelta(days=int(days)), figures.tenants_for(request.user))
    context = {
        **model_admin.admin_site.each_context(request),
        "title": gettext("Response times"),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "spans": [(value, label, value == days) for value, label in SPANS.items()],
        "rows": [_shown(one) for one in found],
        "open": sum(one.open for one in found),
        "answered": sum(one.answered for one in found),
        "expired": sum(one.expired for one in found),
        "oldest": _span(max((one.oldest_open_s for one in found if one.oldest_open_s is not None), default=None)),
        "cut": len(found) >= figures.GROUPS,
    }
    request.current_app = model_admin.admin_site.name  # type: ignore[attr-defined]
    return TemplateResponse(request, "ravi/admin/figures.html", context)


def _shown(one: Figures) -> dict[str, Any]:
    return {
        "figures": one,
        "about": show.word(one.tool) if one.tool in HumanRequest.Kind.values else one.tool,
        "denied": show.NONE if one.denied_share is None else f"{one.denied_share:.0%}",
        "p50": _span(one.answer_s_p50),
        "p95": _span(one.answer_s_p95),
        "longest": _span(one.answer_s_max),
        "oldest": _span(one.oldest_open_s),
    }


def _span(seconds: float | None) -> str:
    return show.NONE if seconds is None else show.duration(timedelta(seconds=seconds))
