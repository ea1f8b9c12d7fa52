"""Translations of the names of models and fields, and of the words in rows.

Django derives the names of models and fields from the code. They are translated here, so that migrations have only the
names in code. `word` translates a word of a row, for templates and pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.translation import gettext, gettext_lazy, gettext_noop as _

MODELS = {
    *(_("agent"), _("agents"), _("agent version"), _("agent versions"), _("audit record"), _("audit log")),
    _("feedback"),
    *(_("session"), _("sessions"), _("board task"), _("board tasks"), _("run"), _("runs")),
    *(_("budget account"), _("budget accounts")),
    *(_("model limit"), _("model limits")),
    *(_("daily budget"), _("daily budgets"), _("journal entry"), _("journal entries")),
    *(_("request"), _("approvals & questions"), _("sticky decision"), _("sticky decisions")),
    *(_("delegation"), _("delegations"), _("schedule"), _("schedules"), _("worker process"), _("worker processes")),
    *(_("follow"), _("follows"), _("publication"), _("publications"), _("source"), _("sources")),
    *(_("source item"), _("source items"), _("file"), _("files")),
}
FIELDS = {
    _("score"),
    *(_("access"), _("action"), _("address"), _("budget"), _("changed at"), _("checked at")),
    *(_("created at"), _("cron"), _("decided by"), _("delegate"), _("delivered")),
    *(_("description"), _("detail"), _("digest"), _("done at"), _("enabled"), _("event")),
    *(_("failures"), _("followers"), _("id"), _("identity"), _("input"), _("key"), _("kind")),
    *(_("label"), _("location"), _("max cost"), _("max cost usd"), _("max tokens"), _("max turns")),
    *(_("message id"), _("metadata"), _("name"), _("options"), _("owner"), _("parent agent"), _("priority")),
    *(_("reason"), _("release"), _("request"), _("reserved cost"), _("reserved tokens"), _("reserved turns")),
    *(_("revision"), _("revoked at"), _("revoked by"), _("risk"), _("seen at"), _("signal"), _("since")),
    *(_("spent cost"), _("spent tokens"), _("spent turns"), _("started at"), _("starts at"), _("status")),
    *(
        _("tenant"),
        _("timezone"),
        _("tool"),
        _("topic"),
        _("until"),
        _("updated at"),
        _("user"),
        _("version"),
        _("waiting"),
    ),
}
CHOICES = {
    *(_("Code"), _("Admin"), _("Todo"), _("Doing"), _("Done"), _("Blocked"), _("Queued"), _("Pending")),
    *(_("Running"), _("Suspended"), _("Completed"), _("Failed"), _("Cancelled"), _("Question"), _("Approval")),
    *(_("reject"), _("Input"), _("Uncertain"), _("Client Tool"), _("Feed"), _("Webhook"), _("Adapter")),
}
ROW_VALUES = {
    # states of runs, requests, tasks, polls and workers
    *(_("queued"), _("pending"), _("running"), _("suspended"), _("blocked"), _("completed"), _("failed")),
    *(_("cancelled"), _("answered"), _("expired"), _("todo"), _("doing"), _("done"), _("alive"), _("late")),
    # kinds and events of requests, and what was decided
    *(_("question"), _("approval"), _("input"), _("uncertain"), _("opened"), _("escalated"), _("reassigned")),
    *(_("client_tool"), "standing", "standing_revoked"),
    *(_("approve"), "deny", _("edit"), _("answer"), _("skip"), _("cancel"), _("resolve")),
    *(_("happened"), "run_again", _("fail")),
    # risks, effects, priorities
    *(_("safe"), _("high"), _("critical"), _("idempotent"), _("at most once"), _("transactional")),
    *(_("background"), _("low"), _("normal")),
    # who speaks, an entry's phases and bodies, the audit's events
    *(_("system"), _("user"), _("assistant"), _("tool"), _("started"), _("paused"), _("result"), _("request")),
    *(_("error"), _("model"), _("run"), _("code"), _("admin")),
    # parts of an agent's spec, and of a call
    *(_("name"), _("description"), _("kind"), _("fallbacks"), _("system instructions"), _("variables")),
    *(_("tool names"), _("sub agents"), _("approval required risk"), _("approvers"), _("initial tool choice")),
    *(_("client tools"), _("public signals"), _("output topic"), _("source signal"), _("follow topics")),
    *("every s", _("preferences"), _("items per generation"), _("welcome"), _("starter prompts"), _("retention")),
    *(_("window"), _("max iterations"), _("budget"), _("options"), _("result schema"), _("arguments")),
    # money, see kernel.visible
    *(_("unknown"), _("under $0.000001")),
}
# What people read instead of a name in the code, or of a word in a row.
LABELS = {
    **{"catch up": _("after a downtime"), "decided by name": _("decided by"), "last at": _("last time")},
    **{"every s": _("interval in seconds"), "jitter s": _("random delay in seconds")},
    **{"standing": _("sticky decision used"), "standing_revoked": _("sticky decision revoked")},
    **{"run_again": _("run again"), "deny": _("reject")},
}
_NAMES = {*MODELS, *FIELDS, *CHOICES, *ROW_VALUES, *LABELS}


def word(value: str) -> str:
    """Translate a word of a row; other texts stay unchanged."""
    return gettext(LABELS.get(value, value)) if value in ROW_VALUES else value


def translate(models: Iterable[type[Any]]) -> None:
    """Set the translated names of the models. Call this before a form of them is created."""
    for model in models:
        named = model._meta
        named.verbose_name = _name(named.verbose_name)
        named.verbose_name_plural = _name(named.verbose_name_plural)
        for field in named.local_fields:
            field.verbose_name = _name(field.verbose_name)
            if field.choices:
                field.choices = [(value, _name(label)) for value, label in field.choices]


def _name(text: Any) -> Any:
    return gettext_lazy(LABELS.get(str(text), str(text))) if str(text) in _NAMES else text
