"""The page of a request. GET shows it; POST answers it as the logged-in user, through `people`."""

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
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.agents.fields import text_line
from ravi_django.admin.agents.versions import changes
from ravi_django.admin.base import InspectAdmin
from ravi_django.kernel import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.models import AuditRecord, HumanRequest
from ravi_django.pages import formats, texts
from ravi_django.pages.context import cost_of, input_of, outcome_of, questions_of, turns_of
from ravi_django.pages.form import DecisionForm, now_at
from ravi_django.people import answers, escalation, rights
from ravi_django.people.answers import MAX_TEXT
from ravi_django.people.top_ups import is_top_up

PREFIX = "decision"
TURNS = 12  # of the conversation, the last ones
HISTORY = 100  # records


class ReassignForm(forms.Form):
    to = forms.CharField(
        label=_("Assign to"),
        max_length=220,
        help_text=_("owner, staff, user:NAME, group:NAME or permission:app.codename"),
        widget=text_line(),
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
        values = {"who": texts.who(asked), "name": texts.name_of(asked)}
        self.message_user(request, gettext("Assigned to %(who)s: %(name)s.") % values, messages.SUCCESS)
        return self._to_inbox(request)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.reassign_view)
        return [path("<path:object_id>/reassign/", view, name="ravi_humanrequest_reassign"), *super().get_urls()]

    def _decide(self, request: HttpRequest, asked: HumanRequest) -> HttpResponse:
        if refusal := rights.refusal(request.user, asked):
            raise PermissionDenied(refusal)
        form = DecisionForm(asked, request.POST, PREFIX)
        if asked.status != HumanRequest.Status.PENDING:
            return self._lost(request, asked.pk, form=form)
        decision = form.decision()
        if decision is None:
            return self._page(request, asked, form=form, status=400)
        try:
            answers.answer(asked.pk, by=request.user, **decision)
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
        values = {"decision": capfirst(texts.decision_of(done)), "name": texts.name_of(done)}
        recorded = gettext("%(decision)s: %(name)s. It is recorded under your name, and the run continues.")
        self.message_user(request, recorded % values, messages.SUCCESS)
        return self._to_inbox(request)

    def _lost(self, request: HttpRequest, pk: Any, *, why: str = "", **forms_: Any) -> HttpResponse:
        """The page as it is now, with the typed texts and a notice of what has happened meanwhile."""
        asked = answers.find(pk)
        seen = next(iter(forms_.values()))
        is_newer = str(asked.version) != seen["version"].value()
        is_pending = asked.status == HumanRequest.Status.PENDING
        if is_pending:  # the next button answers the version that the person sees now
            now_at(seen, asked.version)
        notice = why if is_pending and not is_newer else late_answer_text(asked)
        return self._page(request, asked, notice=notice, status=409, **forms_)

    def _asked(self, request: HttpRequest, object_id: str) -> HumanRequest:
        """As in REST: 404 for a request that the user may not see."""
        row: HumanRequest | None = self.get_object(request, object_id)
        if row is None:
            raise Http404
        return row

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
        why_not = rights.refusal(request.user, asked)
        open_to_me = is_pending and not why_not
        form, reassign = form or DecisionForm(asked, prefix=PREFIX), reassign or ReassignForm(asked)
        for each in (form, reassign):
            self.dress(request, each)
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
        """The inbox, with the filters that the person had chosen."""
        address = reverse("admin:ravi_humanrequest_changelist", current_app=self.admin_site.name)
        filters = {"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}
        return redirect(add_preserved_filters(filters, address))  # type: ignore[arg-type]


def _may_reassign(user: Any, asked: HumanRequest) -> bool:
    try:
        escalation.check(user, asked)
    except (ForbiddenError, NotFoundError):
        return False
    return True


def context_of(row: HumanRequest) -> dict[str, Any]:
    return {
        "title": texts.title_of(row),
        "asked": row,
        "status": formats.status(row.status),
        "who": texts.who(row),
        "next": texts.next_step(row),
        "end": texts.end_of(row),
        "steps": texts.steps_of(row),
        "is_pending": row.status == HumanRequest.Status.PENDING,
        "is_question": row.kind in (HumanRequest.Kind.QUESTION, HumanRequest.Kind.INPUT),
        "is_budget": is_top_up(row),
        "age": formats.duration(timezone.now() - row.created_at),
        "about": formats.visible(str(row.about.get("context") or "")),
        "questions": questions_of(row),
        "arguments": None if row.kind == HumanRequest.Kind.QUESTION else formats.pretty(row.arguments, None),
        "tool": _tool(row),
        "cost": cost_of(row.run),
        "input": input_of(row.run),
        "turns": turns_of(row, TURNS),
        "outcome": _outcome(row),
        "history": _history(row),
    }


def _tool(row: HumanRequest) -> dict[str, Any] | None:
    """The tool's description and parameters when the request was opened."""
    schema: Any = row.about.get("schema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    hints = []
    for name, field in (properties or {}).items() if isinstance(properties, dict) else ():
        declared = field if isinstance(field, dict) else {}
        kind = declared.get("type") or (_one_of(declared["enum"]) if declared.get("enum") else "")
        hints.append(
            {
                "name": formats.visible(str(name)),
                "type": formats.visible(gettext(" or ").join(map(str, kind)) if isinstance(kind, list) else str(kind)),
                "required": name in (schema.get("required") or ()),
                "description": formats.visible(str(declared.get("description") or "")),
            }
        )
    description = formats.visible(str(row.about.get("description") or ""))
    return {"description": description, "hints": hints} if description or hints else None


def _one_of(values: Any) -> str:
    return gettext("one of %(values)s") % {"values": ", ".join(map(str, values))}


def _outcome(row: HumanRequest) -> dict[str, Any] | None:
    """The outcome, with the difference of changed arguments."""
    outcome = outcome_of(row)
    if outcome is None:
        return None
    edited = outcome["arguments"]  # compared as one document, so that names of arguments are not translated
    compared = changes({"arguments": row.arguments}, {"arguments": edited}) if isinstance(edited, dict) else []
    return {**outcome, "changes": compared}


def _history(row: HumanRequest) -> list[dict[str, Any]]:
    records = AuditRecord.objects.filter(run_id=row.run_id, event="request", detail__request=str(row.pk))
    return [_event(row, record) for record in records.order_by("id")[:HISTORY]]


def _event(row: HumanRequest, record: AuditRecord) -> dict[str, Any]:
    detail = record.detail if isinstance(record.detail, dict) else {}
    to = str(detail.get("to") or "")
    return {
        "at": record.created_at,
        "what": record.name,
        "by": formats.visible(str(detail.get("by") or "")),
        "to": texts.address(to, row) if to else "",
        "words": texts.answer_text(detail.get("answer")) or formats.visible(str(detail.get("reason") or "")),
    }


def late_answer_text(row: HumanRequest) -> str:
    """The notice for an answer that came too late: the name and the decision of the first answer."""
    if row.status == HumanRequest.Status.PENDING:
        return gettext("This request has changed since you opened it. Check it again; your input is still here.")
    if row.status != HumanRequest.Status.ANSWERED:
        values = {"status": formats.word(row.status), "when": formats.moment(row.answered_at)}
        return gettext("Your decision was not recorded: the request has been %(status)s since %(when)s.") % values
    values = {
        "name": texts.answered_by(row),
        "when": formats.moment(row.answered_at),
        "decision": texts.decision_of(row),
    }
    return gettext("Your decision was not recorded: %(name)s decided first, at %(when)s: %(decision)s.") % values
