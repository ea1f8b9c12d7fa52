"""Who may open a page: strangers are sent to the login, and errors are HTML pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ravi_django.users import has, permits

View = Callable[..., HttpResponseBase]


def staff_page(permission: str) -> Callable[[View], View]:
    """For staff with the permission. Other staff get a 403, other users a 404."""

    def decorate(view: View) -> View:
        @never_cache
        @require_safe
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            user = request.user
            if not user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            if not (has(user, "is_superuser") or has(user, "is_staff")):
                return problem(request, 404, _("There is no such page."))
            if not permits(user, permission):
                words = _("You need the permission %(name)s for this page. An administrator of the site can give it.")
                return problem(request, 403, words % {"name": permission})
            return view(request, *args, **kwargs)

        return checked

    return decorate


def problem(request: HttpRequest, status: int, words: str) -> HttpResponse:
    return render(request, "ravi/ui/problem.html", {"words": words}, status=status)
