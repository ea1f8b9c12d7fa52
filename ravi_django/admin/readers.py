"""Which requests the user of an admin page may answer, and which they may read.

The rule is in `people`. Here it is applied once a page, to the user as Django has read them. This only decides
what a page shows: an answer is checked again.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest

from ravi_django.conf import conf
from ravi_django.models import HumanRequest
from ravi_django.people import rights, site_rules

NEWEST = 500  # of the pending requests

Requests = QuerySet[HumanRequest]


def answerable(request: HttpRequest) -> Requests:
    """Requests of any status."""
    requests: Requests | None = getattr(request, "_ravi_answerable", None)
    if requests is None:
        requests = rights.answerable_as_read(request.user)
        request._ravi_answerable = requests  # type: ignore[attr-defined]
    return requests.all()


def readable(request: HttpRequest) -> Requests:
    """As `rights.visible`: those that the user may answer, and those of their own runs. With `ravi.view_humanrequest`
    all of them, or those of the user's tenants when RAVI["TENANT_OF"] is set."""
    if not reads_all(request):
        return answerable(request) | HumanRequest.objects.filter(owner_id=request.user.pk)
    theirs = None if conf.TENANT_OF is None else site_rules.tenants_of(request.user)
    rows = HumanRequest.objects.all()
    return rows if theirs is None else rows.filter(Q(tenant__in=theirs) | Q(owner_id=request.user.pk))


def reads_all(request: HttpRequest) -> bool:
    return bool(request.user.has_perm("ravi.view_humanrequest"))


def _open(request: HttpRequest) -> Requests:
    """`answerable` without pending requests that take no answer now: too early, too late, or the run has ended."""
    return answerable(request).filter(rights.in_time() | ~Q(status=HumanRequest.Status.PENDING))


def ids_to_answer(request: HttpRequest, rows: Requests) -> Any:
    """The ids of the rows that the user may answer; with RAVI["MAY_ANSWER"], only of the newest ones."""
    answerable_rows = _open(request)
    if conf.MAY_ANSWER is None:
        return answerable_rows.values("pk")
    newest = rows.filter(pk__in=answerable_rows.values("pk")).select_related("run").order_by("-id")[:NEWEST]
    return rights.open_among(request.user, list(newest))


def glance(request: HttpRequest) -> list[dict[str, Any]]:
    """`tool`, `run__agent` and `mine` (the user may answer it) of the newest pending requests, `mine` first. One query
    for the counts and filters of a page. RAVI["MAY_ANSWER"] is called for each that might be `mine`."""
    newest: list[dict[str, Any]] | None = getattr(request, "_ravi_glance", None)
    if newest is None:
        pending = readable(request).filter(status=HumanRequest.Status.PENDING)
        may_answer = Exists(_open(request).filter(pk=OuterRef("pk")))
        rows: Any = (
            pending.annotate(mine=may_answer).order_by("-mine", "-id").values("pk", "tool", "run__agent", "mine")
        )
        newest = list(rows[:NEWEST])
        if conf.MAY_ANSWER is not None:
            _ask_hook(request, newest)
        request._ravi_glance = newest  # type: ignore[attr-defined]
    return newest


def _ask_hook(request: HttpRequest, rows: list[dict[str, Any]]) -> None:
    answerable_ids = [row["pk"] for row in rows if row["mine"]]
    asked = list(HumanRequest.objects.filter(pk__in=answerable_ids).select_related("run")) if answerable_ids else []
    open_ = rights.open_among(request.user, asked)
    for row in rows:
        row["mine"] = row["pk"] in open_
