"""Rights to pages: users who are not logged in go to the login, and errors are HTML pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render, resolve_url
from django.templatetags.static import static
from django.urls import NoReverseMatch, Resolver404, get_script_prefix, resolve, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views import View
from django.views.decorators.cache import never_cache

from ravi_django.people import mail
from ravi_django.users import has, permits


@method_decorator(never_cache, name="dispatch")
class Page(View):
    """For users who are logged in. Others go to the login. Every response has the policy, also an error."""

    http_method_names = ["get", "head"]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        user = getattr(request, "user", None)
        if user is None or not user.is_authenticated:
            return _with_policy(redirect_to_login(request.get_full_path(), login_url()))
        return _with_policy(self.admit(request, *args, **kwargs))

    def admit(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return super().dispatch(request, *args, **kwargs)


class StaffPage(Page):
    """For staff with the permission. Other staff get a 403, other users a 404."""

    permission = ""

    def admit(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        user = request.user
        if not (has(user, "is_superuser") or has(user, "is_staff")):
            return problem(request, 404, _("There is no such page."))
        if not (has(user, "is_superuser") or permits(user, self.permission)):
            text = _("You need the permission %(name)s for this page. An administrator of the site can give it.")
            return problem(request, 403, text % {"name": self.permission})
        return super().admit(request, *args, **kwargs)


def problem(request: HttpRequest, status: int, text: str) -> HttpResponse:
    home = f"{request.path.partition('/ui/')[0]}/ui/chat/"
    return render(request, "ravi/ui/problem.html", {"words": text, "home": home}, status=status)


def _with_policy(response: HttpResponseBase) -> HttpResponseBase:
    """Pages show texts of models: the browser runs no inline script, and loads nothing from other hosts."""
    here = f"'self' {urlsplit(static('')).netloc}".strip()
    sockets = urlsplit(mail.socket()).netloc
    response["Content-Security-Policy"] = (
        f"default-src {here}; connect-src 'self' {sockets}; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )
    return response


def admin_list(model: str) -> str:
    """The list of a model's rows in the admin; empty for a site without the admin."""
    try:
        return reverse(f"admin:ravi_{model}_changelist")
    except NoReverseMatch:
        return ""


def login_url() -> str:
    """The site's LOGIN_URL; the admin's login if no page is there."""
    try:
        url = str(resolve_url(settings.LOGIN_URL))
        if "://" in url or url.startswith("//"):
            return url
        match = resolve("/" + url.partition("?")[0].removeprefix(get_script_prefix()))
        if (match.app_names[-1:], match.url_name) != (["ravi"], "nothing"):
            return url
    except (NoReverseMatch, Resolver404):
        pass
    try:
        return reverse("admin:login")
    except NoReverseMatch:
        return str(settings.LOGIN_URL)
