"""The social graph: follows, which may be ended here, and the delivery of publications."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.admin.base import ChoiceFilter, InspectAdmin, column, id_begins, users_named
from ravi_django.models import Follow, Publication, Session
from ravi_django.pages import formats
from ravi_django.runs.lifecycle.erasure_rows import delete_follows


class Bound(ChoiceFilter):
    title = _("conversation")
    parameter_name = "bound"
    labels = {"no": _("not bound to a session"), "yes": _("bound to a session")}

    def condition(self, value: str) -> Q:
        return Q(session__isnull=value == "no")


class Digest(ChoiceFilter):
    title = _("delivery")
    parameter_name = "delivery"
    labels = {"once": _("immediate"), "digest": _("digests")}

    def condition(self, value: str) -> Q:
        return Q(every_s=0) if value == "once" else Q(every_s__gt=0)


class State(ChoiceFilter):
    title = _("fan-out")
    parameter_name = "state"
    labels = {"open": _("in progress"), "done": _("done")}

    def condition(self, value: str) -> Q:
        return Q(done_at__isnull=value == "open")


class GraphAdmin(InspectAdmin):
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["topic"]  # see condition_of

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        return id_begins(term, "id") | Q(topic__startswith=term) | Q(tenant=term)


@admin.register(Follow)
class FollowAdmin(GraphAdmin):
    """Users with `ravi.delete_follow` end follows."""

    below = (Publication,)
    list_display = ["agent", "topic", "owner", "tenant", "conversation", "digest", "last"]
    readonly_fields = ["id", "agent", "topic", "owner", "tenant", "conversation", "deliveries_go_to", "every_s"]
    readonly_fields += ["metadata_json", "last_at", "created_at"]
    list_display_links = ["agent", "topic"]
    list_filter = [Bound, Digest]
    list_select_related = ["owner", "session", "home"]
    search_help_text = _(
        "Search topics (from the start), agent addresses, tenants, users, and ids (or their first characters)."
    )
    actions = None  # one at a time
    metadata_json = column(
        _("metadata"), lambda follow: formats.visible(json.dumps(follow.metadata, ensure_ascii=False))
    )
    last = column(_("last delivery"), lambda follow: formats.moment(follow.last_at))

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        return super().condition_of(request, term) | Q(agent=term) | Q(owner__in=users_named(term))

    def has_delete_permission(self, request: HttpRequest, obj: Follow | None = None) -> bool:
        return bool(request.user.has_perm("ravi.delete_follow"))

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[Any, int], set[str], list[str]]:
        """Their undelivered messages are deleted too, which takes no permission."""
        return (
            [gettext("Follow: %(follow)s") % {"follow": follow} for follow in objs],
            {gettext("follows"): len(objs)},
            set(),
            [],
        )

    def delete_model(self, request: HttpRequest, obj: Follow) -> None:
        delete_follows(Follow.objects.filter(id=obj.id))

    @admin.display(description=_("conversation"))
    def conversation(self, follow: Follow) -> Any:
        return _link(follow.session) if follow.session else formats.NONE

    @admin.display(description=_("delivered to"))
    def deliveries_go_to(self, follow: Follow) -> Any:
        return _link(follow.home) if follow.home else gettext("a new conversation")

    @admin.display(description=_("delivery"))
    def digest(self, follow: Follow) -> str:
        every = gettext("every %(time)s") % {"time": f"{follow.every_s} s"}
        return every if follow.every_s else gettext("immediately")


@admin.register(Publication)
class PublicationAdmin(GraphAdmin):
    in_index = False
    list_display = ["topic", "tenant", "text", "followers", "delivered", "state", "published"]
    list_display_links = ["topic", "text"]
    readonly_fields = ["id", "topic", "tenant", "message_id", "by", "text", "followers", "delivered", "left_out"]
    readonly_fields += ["state", "created_at", "done_at"]
    list_filter = [State]
    list_select_related = ["owner", "run"]
    search_help_text = _("Search topics (from the start), tenants, message ids, and ids (or their first characters).")
    text = column(_("message"), lambda publication: text_of(publication.body))
    published = column(_("published"), lambda publication: formats.moment(publication.created_at))

    def condition_of(self, request: HttpRequest, term: str) -> Q:
        return super().condition_of(request, term) | Q(message_id=term)

    @admin.display(description=_("published by"))
    def by(self, publication: Publication) -> Any:
        if publication.run_id:
            return formats.link_to("run", publication.run_id, publication.body.get("sender", publication.run_id))
        return publication.owner or gettext("the site")

    @admin.display(description=_("skipped"))
    def left_out(self, publication: Publication) -> str:
        """Followers that may not receive it or no longer exist: known when the fan-out is done."""
        left = max(publication.followers - publication.delivered, 0)
        return str(left) if publication.done_at else gettext("%(count)s remaining") % {"count": left}

    @admin.display(description=_("fan-out"))
    def state(self, publication: Publication) -> str:
        if publication.done_at:
            return formats.word("done")
        return gettext("%(used)s of %(limit)s") % {"used": publication.delivered, "limit": publication.followers}


def _link(session: Session) -> Any:
    return formats.link_to("session", session.pk, formats.visible(str(session)))


def text_of(body: Any) -> str:
    """The beginning of a message."""
    payload = body.get("payload", {}) if isinstance(body, dict) else {}
    if payload.get("kind") == "chat":
        content = payload.get("message", {}).get("content", [])
        text = " ".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    else:
        text = json.dumps(payload.get("data", payload), ensure_ascii=False)
    return formats.snippet(text, 120)
