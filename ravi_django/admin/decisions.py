"""The page that a person decides on. A GET shows; a POST answers through `runtime.human`, as the logged-in user."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import helpers
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ravi_django.admin.base import InspectAdmin
from ravi_django.admin.decision_page import context_of, lost_words
from ravi_django.kernel import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.models import HumanRequest
from ravi_django.pages.form import DecisionForm, now_at
from ravi_django.pages.words import decision_of, name_of, who
from ravi_django.runtime.people import answers, escalation, rights
from ravi_django.runtime.people.answers import MAX_TEXT

PREFIX = "decision"


class ReassignForm(forms.Form):
    """Ask somebody else instead."""

    to = forms.CharField(
        label=_("Ask instead"),
        max_length=220,
        help_text=_("owner, staff, user:NAME, group:NAME or permission:app.codename"),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        strip=False,
        max_length=MAX_TEXT,
        widget=forms.Textarea(attrs={"rows": 2, "cols": 80}),
    )
    version = forms.IntegerField(widget=forms.HiddenInput)
    use_required_attribute = False

    def __init__(self, asked: HumanRequest, data: Any = None) -> None:
        super().__init__(data, initial={"version": asked.version}, prefix="reassign")


class DecisionPages(InspectAdmin):
    """Mixed into the inbox: its change page, and `<id>/reassign/`."""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        asked = self._asked(request, object_id)
        if request.method == "POST":
            return self._decide(request, asked)
        return self._page(request, asked)

    def reassign_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        asked = self._asked(request, object_id)
        if not _may_reassign(request.user, asked):
            raise PermissionDenied
        form = ReassignForm(asked, request.POST)
        if not form.is_valid():
            return self._page(request, asked, reassign=form, status=400)
        to, reason, version = (form.cleaned_data[name] for name in ("to", "reason", "version"))
        try:
            answers.reassign(asked.pk, to, by=request.user, reason=reason, version=version)
        except InvalidInputError as error:
            form.add_error("to" if error.field == "to" else "reason" if error.field == "reason" else None, str(error))
            return self._page(request, asked, reassign=form, status=400)
        except ConflictError:
            return self._lost(request, asked.pk, reassign=form)
        except ForbiddenError as error:
            raise PermissionDenied(str(error)) from None
        asked = answers.find(asked.pk)
        words = gettext("Asked of %(who)s now: %(name)s.") % {"who": who(asked), "name": name_of(asked)}
        self.message_user(request, words, messages.SUCCESS)
        return self._to_inbox(request)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.reassign_view)
        return [path("<path:object_id>/reassign/", view, name="ravi_humanrequest_reassign"), *super().get_urls()]

    # ---------------------------------------------------------------------------------------------------- decide

    def _decide(self, request: HttpRequest, asked: HumanRequest) -> HttpResponse:
        if refusal := rights.why_not(request.user, asked):
            raise PermissionDenied(refusal)
        form = DecisionForm(asked, request.POST, PREFIX)
        if asked.status != HumanRequest.Status.PENDING:
            return self._lost(request, asked.pk, form=form)
        given = form.given()
        if given is None:
            return self._page(request, asked, form=form, status=400)
        try:
            answers.answer(asked.pk, by=request.user, **given)
        except InvalidInputError as error:
            form.refuse(error.field, str(error))
            return self._page(request, asked, form=form, status=400)
        except ConflictError as error:
            return self._lost(request, asked.pk, form=form, why=str(error))
        except ForbiddenError as error:
            raise PermissionDenied(str(error)) from None
        except NotFoundError:
            raise Http404 from None
        done = answers.find(asked.pk)
        words = decision_of(done)
        said = {"decision": f"{words[0].upper()}{words[1:]}", "name": name_of(done)}
        told = gettext("%(decision)s: %(name)s. It was recorded under your name, and the run goes on.")
        self.message_user(request, told % said, messages.SUCCESS)
        return self._to_inbox(request)

    def _lost(self, request: HttpRequest, pk: Any, *, why: str = "", **forms_: Any) -> HttpResponse:
        """The page as it is now, with what was typed, in words that say what happened meanwhile."""
        asked = answers.find(pk)
        seen = next(iter(forms_.values()))
        is_newer = str(asked.version) != seen["version"].value()
        words = lost_words(asked) if is_newer or asked.status != HumanRequest.Status.PENDING else why
        if asked.status == HumanRequest.Status.PENDING:  # what the person presses next is meant for what they see now
            now_at(seen, asked.version)
        return self._page(request, asked, notice=words, status=409, **forms_)

    # ------------------------------------------------------------------------------------------------------ show

    def _asked(self, request: HttpRequest, object_id: str) -> HumanRequest:
        """As REST does: what somebody may not see is not there."""
        found: HumanRequest | None = self.get_object(request, object_id)
        if found is None:
            raise Http404
        return found

    def _page(
        self,
        request: HttpRequest,
        asked: HumanRequest,
        *,
        form: DecisionForm | None = None,
        reassign: ReassignForm | None = None,
        notice: str = "",
        status: int = 200,
    ) -> HttpResponse:
        is_pending = asked.status == HumanRequest.Status.PENDING
        why_not = rights.why_not(request.user, asked)
        open_to_me = is_pending and not why_not
        form, reassign = form or DecisionForm(asked, prefix=PREFIX), reassign or ReassignForm(asked)
        for shown in (form, reassign):
            self.dress(request, shown)
        context = {
            **self.admin_site.each_context(request),
            **context_of(asked),
            # This page has forms of its own.
            "adminform": helpers.AdminForm(forms.Form(), [], {}, model_admin=self),  # type: ignore[arg-type]
            "inline_admin_formsets": [],
            "subtitle": None,
            "original": asked,
            "media": self.media,
            "preserved_filters": self.get_preserved_filters(request),
            "may_answer": open_to_me,
            "why_not": why_not,
            "own_call": asked.four_eyes and asked.owner_id == request.user.pk,
            "may_reassign": open_to_me or (is_pending and _may_reassign(request.user, asked)),
            "may_see_run": request.user.has_perm("ravi.view_run") or request.user.has_perm("ravi.change_run"),
            "form": form,
            "typed": [] if open_to_me else form.typed() if form.is_bound else [],
            "reassign_url": reverse(
                "admin:ravi_humanrequest_reassign", args=[asked.pk], current_app=self.admin_site.name
            ),
            "reassign": reassign,
            "notice": notice,
            "errors": form.is_bound and form.errors,
        }
        response = self.render_change_form(request, context, change=True, obj=asked)
        response.status_code = status
        return response  # type: ignore[no-any-return]

    def _to_inbox(self, request: HttpRequest) -> HttpResponse:
        """Where the person came from, with the filters that they had chosen."""
        address = reverse("admin:ravi_humanrequest_changelist", current_app=self.admin_site.name)
        kept = {"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}
        return redirect(add_preserved_filters(kept, address))  # type: ignore[arg-type]


def _may_reassign(user: Any, asked: HumanRequest) -> bool:
    try:
        escalation.check(user, asked)
    except (ForbiddenError, NotFoundError):
        return False
    return True
