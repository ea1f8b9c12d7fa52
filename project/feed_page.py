"""The feed page: what a person's own reader has made of the news, and what they want to be told of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from django.contrib.auth.mixins import LoginRequiredMixin
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.generic import TemplateView

from project import feeds
from ravi_django.kernel import KernelError, TopicId
from ravi_django.models import JournalEntry, Run
from ravi_django.runs.catalog.registry import get_agent

PAGE = 50
MAX_PREFERENCES = 2000  # characters
LATE = timedelta(minutes=2)  # a row has its time before its commit: what was committed late is asked for again


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
            after, before = _place_in(request, "after"), _place_in(request, "before")
        except (ValueError, OverflowError, OSError):  # no id, or one of no time that there is
            return refused(400, "invalid_input", "after and before are ids of items")
        rows = curated(request.user)
        late: list[JournalEntry] = []
        if after is not None:
            late = list(rows.filter(finished_at__gt=after.at - LATE).exclude(after.later)[:PAGE])[::-1]
            rows = rows.filter(after.later).order_by("finished_at", "run", "seq")
        elif before is not None:
            rows = rows.exclude(before.later).exclude(run=before.run, seq=before.seq)
        found = list(rows[: PAGE + 1])
        items = [shown(row) for row in (*late, *found[:PAGE])]
        feeds.settle(request.user)  # the page asks right after it has followed
        session = feeds.session_of(request.user)
        answer = {
            "user": str(request.user.pk),
            "items": items,
            "more": len(found) > PAGE,
            "after": max([request.GET.get("after") or "", *(item["id"] for item in items)]),
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
    return JournalEntry.objects.filter(run__in=runs, kind="log", name="feed.curated").order_by(
        "-finished_at", "-run", "-seq"
    )


def shown(row: JournalEntry) -> dict[str, Any]:
    said = row.result if isinstance(row.result, Mapping) else {}
    score = said.get("score")
    return {
        "id": str(Place(row.finished_at, row.run_id, row.seq)),
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


class Place(NamedTuple):
    """Of an item in the order of the page. Its text, the item's id, sorts alike."""

    at: datetime
    run: UUID
    seq: int

    def __str__(self) -> str:
        return f"{round(self.at.timestamp() * 1e6):017}-{self.run.hex}-{self.seq:09}"

    @property
    def later(self) -> Q:
        then = {"finished_at": self.at}
        return Q(finished_at__gt=self.at) | Q(run__gt=self.run, **then) | Q(run=self.run, seq__gt=self.seq, **then)


def _place_in(request: HttpRequest, name: str) -> Place | None:
    if not (id := request.GET.get(name)):
        return None
    micros, run, seq = id.split("-")
    return Place(datetime.fromtimestamp(int(micros) / 1e6, UTC), UUID(run), int(seq))


def _web(address: str) -> str:
    """`address` if it is one of a web page: what else there is may be a script."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return address if parts.scheme in ("http", "https") and parts.netloc else ""
