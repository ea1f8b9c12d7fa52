"""The feed page: what a person's own reader has made of the news, and what they want to be told of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.contrib.auth.mixins import LoginRequiredMixin
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.generic import TemplateView

from project import feeds
from ravi_django.kernel import KernelError, TopicId
from ravi_django.models import JournalEntry, Run
from ravi_django.models.base import first_id_of
from ravi_django.runs.catalog.registry import get_agent

PAGE = 50
MAX_PREFERENCES = 2000  # characters
LATE = timedelta(minutes=2)  # a row's id is made before its commit: what was committed late is asked for again


@method_decorator(never_cache, name="dispatch")
@method_decorator(ensure_csrf_cookie, name="dispatch")  # the page's script sends the cookie's token with each POST
class FeedView(LoginRequiredMixin, TemplateView):
    """The page. Items arrive over `FeedItemsView`, when a frame of the reader's session says that there may be some."""

    template_name = "feed.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        feeds.reader_of(request.user)  # there from now on, so that all topics are delivered to one and the same
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        topics = [TopicId.parse(topic) for topic in feeds.TOPICS]
        return super().get_context_data(
            reader=feeds.READER,
            topics=topics,
            topics_json=list(feeds.TOPICS),
            preferences=feeds.preferences_of(self.request.user),
            model=getattr(getattr(get_agent(feeds.READER), "model", None), "name", ""),
            other="demo" if self.request.user.get_username() == "ada" else "ada",
            **kwargs,
        )


@method_decorator(never_cache, name="dispatch")
class OwnView(View):
    """Answers in JSON, and only those who are logged in."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # type: ignore[override]
        if not request.user.is_authenticated:
            return refused(401, "unauthenticated", "log in first")
        return super().dispatch(request, *args, **kwargs)  # type: ignore[return-value]


class FeedItemsView(OwnView):
    """The newest items; `?before=<id>`: those before it; `?after=<id>`: those after it, the oldest first, and beside
    them the newest of the two minutes before it, of which the client has most already. At most PAGE, and as many
    beside them; `more`: there are further ones in that direction. Of the runs of one's own alone, also for a
    superuser."""

    def get(self, request: HttpRequest) -> JsonResponse:
        try:
            after, before = _id_in(request, "after"), _id_in(request, "before")
            since = None if after is None else _a_little_before(after)
        except (ValueError, OverflowError):  # no id, or one of no time that there is
            return refused(400, "invalid_input", "after and before are ids of items")
        rows = curated(request.user)
        late: list[JournalEntry] = []
        if after is not None:
            late = list(rows.filter(id__gt=since, id__lte=after)[:PAGE])[::-1]
            rows = rows.filter(id__gt=after).order_by("id")
        elif before is not None:
            rows = rows.filter(id__lt=before)
        found = list(rows[: PAGE + 1])
        items = [shown(row) for row in (*late, *found[:PAGE])]
        feeds.settle(request.user)  # the page asks right after it has followed
        session = feeds.session_of(request.user)
        answer = {
            "user": str(request.user.pk),
            "items": items,
            "more": len(found) > PAGE,
            "after": max([str(after or ""), *(item["id"] for item in items)]),
            "session": session and str(session),
            "follows": feeds.followed(request.user),
        }
        return JsonResponse(answer)


class PreferencesView(OwnView):
    """What the reader goes by from now on."""

    def post(self, request: HttpRequest) -> JsonResponse:
        try:
            text = json.loads(request.body)["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str) or len(text) > MAX_PREFERENCES or "\0" in text:
            return refused(400, "invalid_input", f"text must be at most {MAX_PREFERENCES} characters", "text")
        try:
            with transaction.atomic():
                feeds.change_preferences(request.user, text.strip())
        except KernelError as error:
            return refused(409, "conflict", str(error))
        return JsonResponse({"text": text.strip()})


def curated(user: Any) -> QuerySet[JournalEntry]:
    """The reader's entries about items, newest first."""
    runs = Run.objects.filter(owner=user, agent=feeds.READER).values("id")
    return JournalEntry.objects.filter(run__in=runs, kind="log", name="feed.curated").order_by("-id")


def shown(row: JournalEntry) -> dict[str, Any]:
    said = row.result if isinstance(row.result, Mapping) else {}
    score = said.get("score")
    return {
        "id": str(row.id),
        "at": row.finished_at.isoformat(),
        "kept": said.get("keep") is True,
        "score": score if isinstance(score, int | float) else None,
        "title": str(said.get("title") or said.get("headline") or "Untitled"),
        "url": _web(str(said.get("url") or "")),
        **{name: str(said.get(name) or "") for name in ("topic", "summary", "reason")},
    }


def refused(status: int, code: str, message: str, field: str = "") -> JsonResponse:
    error = {"code": code, "message": message, **({"field": field} if field else {})}
    return JsonResponse({"error": error}, status=status)


def _id_in(request: HttpRequest, name: str) -> UUID | None:
    given = request.GET.get(name)
    return UUID(given) if given else None


def _web(address: str) -> str:
    """`address` if it is one of a web page: what else there is may be a script."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return address if parts.scheme in ("http", "https") and parts.netloc else ""


def _a_little_before(id: UUID) -> UUID:
    return first_id_of(datetime.fromtimestamp((id.int >> 80) / 1000, UTC) - LATE)
