"""The page of an e-mail's link: a request and the form that decides it.

It is HTML, for a user with a session of the site, staff or not. GET never decides: programs that scan e-mails follow
every link. The logged-in user decides, and must be the recipient of the e-mail.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.middleware.csrf import CsrfViewMiddleware
from django.shortcuts import render
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _, gettext_lazy
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from ravi_django.kernel import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.kernel.visible import visible
from ravi_django.models import TERMINAL, HumanRequest
from ravi_django.models.names import word
from ravi_django.pages.context import cost_of, input_of, outcome_of, turns_of
from ravi_django.pages.form import DecisionForm, now_at, pretty
from ravi_django.pages.texts import decision_of, end_of, name_of, next_step, title_of
from ravi_django.people import answers, mail, rights
from ravi_django.people.top_ups import is_top_up
from ravi_django.ui.login import login_url

NOT_YOURS = gettext_lazy(
    "There is nothing here for you. The link may be incomplete, or the request may be assigned to "
    "somebody else now. Log in as the person who received the e-mail."
)
EXPIRED = gettext_lazy("This link has expired. If the request is still open, it is in your inbox on this site.")
NOT_FROM_HERE = gettext_lazy(
    "Nothing was decided: this form did not come from this page, or you have logged in since. Open the "
    "link again, and allow cookies of this site."
)
TURNS, TURN_CHARS = 6, 1_000  # the last turns of the conversation, and the characters of a block

HEADERS = {
    "Cache-Control": "no-store",
    # With "no-referrer" browsers post with the origin "null", which Django's CSRF check refuses.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class LinkState:
    """Whether the user may decide the request by this link now."""

    status: int  # of the page; 200: the user may decide, or the request is closed
    reason: str = ""  # why the user may not decide
    is_open: bool = False
    is_shown: bool = True


class _Csrf(CsrfViewMiddleware):
    def _reject(self, request: HttpRequest, reason: str) -> str:
        return reason  # not Django's own page


def _nothing(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@method_decorator(csrf_exempt, name="dispatch")  # `_checked` does the middleware's check, after that of the method
class DecideView(View):
    http_method_names = ["get", "head", "post"]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if str(request.method).lower() not in self.http_method_names:
            return self._with_headers(self.http_method_not_allowed(request))
        return self._with_headers(self._checked(request, kwargs["token"]))

    def _with_headers(self, response: HttpResponseBase) -> HttpResponseBase:
        for name, value in HEADERS.items():
            response[name] = value
        return response

    def _checked(self, request: HttpRequest, token: str) -> HttpResponseBase:
        check = _Csrf(_nothing)
        check.process_request(request)
        if check.process_view(request, _nothing, (), {}):
            return _message_page(request, NOT_FROM_HERE, 403)
        return check.process_response(request, self._for_the_right_one(request, token))

    def _for_the_right_one(self, request: HttpRequest, token: str) -> HttpResponseBase:
        try:
            mail.parts_of(token)
            user = getattr(request, "user", None)
            if user is None or not user.is_authenticated:
                return redirect_to_login(request.get_full_path(), login_url())
            self.link = mail.find(token, user)
        except mail.ExpiredLinkError:
            return _message_page(request, EXPIRED, 410)
        except NotFoundError:
            return _message_page(request, NOT_YOURS, 404)
        return super().dispatch(request, token=token)

    def get(self, request: HttpRequest, token: str) -> HttpResponse:
        return self._page(request)

    def post(self, request: HttpRequest, token: str) -> HttpResponse:
        state = link_state_of(self.link, request.user)
        if not state.is_open:
            return self._page(request, status=409 if state.status == 200 else state.status)
        form = DecisionForm(self.link.request, request.POST)
        try:
            if not self._decide(request, form):
                return self._page(request, form=form, status=400)
        except InvalidInputError as error:
            form.refuse(error.field, str(error))
            return self._page(request, form=form, status=400)
        except (ConflictError, ForbiddenError, NotFoundError) as error:
            self.link = mail.find(token, request.user)  # as it is now
            now_at(form, self.link.request.version)
            status = 409 if isinstance(error, ConflictError) else 403
            return self._page(request, form=form, notice=visible(str(error)), status=status)
        return HttpResponseRedirect(request.path, status=303)

    def _decide(self, request: HttpRequest, form: DecisionForm) -> bool:
        """Record the answer. False: the form has errors."""
        decision = form.decision()
        if decision is None:
            return False
        answers.answer(self.link.request.id, by=request.user, **decision)
        return True

    def _page(
        self,
        request: HttpRequest,
        *,
        form: DecisionForm | None = None,
        notice: str = "",
        status: int | None = None,
    ) -> HttpResponse:
        asked, state = self.link.request, link_state_of(self.link, request.user)
        if not state.is_shown:
            return _message_page(request, state.reason, status or state.status)
        outcome = outcome_of(asked)
        context = {
            "title": title_of(asked),
            "asked": asked,
            "notice": notice,
            "closed": state.reason,
            "is_open": state.is_open,
            "context": visible(str(asked.about.get("context") or "")),
            "arguments": None if asked.arguments is None else pretty(asked.arguments),
            "cost": cost_of(asked.run),
            "input": input_of(asked.run, TURN_CHARS),
            "turns": turns_of(asked, TURNS, TURN_CHARS),
            "next": next_step(asked),
            "end": end_of(asked),
            "outcome": outcome,
            "edited": pretty(outcome["arguments"]) if outcome and outcome["arguments"] else "",
            "form": form or DecisionForm(asked),
            "errors": form is not None and form.errors,
            "is_top_up": is_top_up(asked),
        }
        return _render(request, context, status or state.status)


def link_state_of(link: mail.Link, user: Any) -> LinkState:
    """By the same rule as the answer. A link is valid only at the escalation level that it was sent at."""
    asked = link.request
    try:
        rights.check(user, asked)
    except NotFoundError:
        return LinkState(403, _("This request is no longer assigned to you."), is_shown=False)
    except ForbiddenError as error:
        return LinkState(403, str(error))
    if asked.status != HumanRequest.Status.PENDING:
        return LinkState(200, _closed(asked, user))
    if asked.expires_at is not None and asked.expires_at <= timezone.now():
        return LinkState(200, _("The time to answer has expired."))
    if asked.run.status in TERMINAL:
        reason = _("The run is already %(status)s. An answer would have no effect.")
        return LinkState(200, reason % {"status": word(asked.run.status)})
    if link.level != asked.level:
        return LinkState(410, _("This request is now assigned to others. You can no longer decide with this link."))
    return LinkState(200, is_open=True)


def _closed(asked: HumanRequest, user: Any) -> str:
    if asked.status != HumanRequest.Status.ANSWERED:
        return _("This request is closed.")
    if asked.answered_by_id == user.pk:
        decision = {"decision": decision_of(asked), "name": name_of(asked)}
        return _("Your decision was recorded: %(decision)s: %(name)s.") % decision
    return _("This request has been decided.")


def _message_page(request: HttpRequest, message: Any, status: int) -> HttpResponse:
    return _render(request, {"title": _("Link to a request"), "closed": message, "asked": None}, status)


def _render(request: HttpRequest, context: dict[str, Any], status: int) -> HttpResponse:
    nonce = secrets.token_urlsafe(16)
    response = render(request, "ravi/decide.html", {**context, "nonce": nonce}, status=status)
    response["Content-Security-Policy"] = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; base-uri 'none'; frame-ancestors 'none'"
    )
    return response
