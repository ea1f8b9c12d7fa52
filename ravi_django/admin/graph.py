"""The social graph: who follows what, which may be ended here, and how far what was published has come."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ravi_django.admin import show
from ravi_django.admin.base import InspectAdmin, id_range, users_named
from ravi_django.models import Follow, Publication, Session
from ravi_django.runtime.social import follow_rows

FOLLOW = ["id", "agent", "topic", "owner", "tenant", "conversation", "deliveries_go_to", "every_s", "given", "last_at"]
FOLLOW += ["created_at"]
PUBLICATION = ["id", "topic", "tenant", "message_id", "by", "text", "followers", "delivered", "left_out", "state"]
PUBLICATION += ["created_at", "done_at"]


class Bound(SimpleListFilter):
    title = _("conversation")
    parameter_name = "bound"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("no", gettext("the agent's own")), ("yes", gettext("of one session"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(session__isnull=self.value() == "no") if self.value() in ("no", "yes") else queryset


class Digest(SimpleListFilter):
    title = _("delivery")
    parameter_name = "delivery"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("once", gettext("each at once")), ("digest", gettext("digests"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "digest":
            return queryset.filter(every_s__gt=0)
        return queryset.filter(every_s=0) if self.value() == "once" else queryset


class State(SimpleListFilter):
    title = _("fan-out")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("open", gettext("under way")), ("done", show.word("done"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(done_at__isnull=self.value() == "open") if self.value() in ("open", "done") else queryset


class GraphAdmin(InspectAdmin):
    ordering = ["-id"]
    sortable_by = ()
    search_fields = ["topic"]
    fields_shown: list[str] = []

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        meant = self.meant(term)
        if bounds := id_range(term):  # a message's id may look like it too
            meant |= Q(id__gte=bounds[0], id__lte=bounds[1])
        return queryset.filter(meant), False

    def meant(self, term: str) -> Q:
        return Q(topic__startswith=term) | Q(tenant=term)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fields_shown

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return self.fields_shown


@admin.register(Follow)
class FollowAdmin(GraphAdmin):
    """`ravi.delete_follow` ends follows."""

    below = (Publication,)
    list_display = ["agent", "topic", "owner", "tenant", "conversation", "digest", "last"]
    list_display_links = ["agent", "topic"]
    list_filter = [Bound, Digest]
    list_select_related = ["owner", "session", "home"]
    search_help_text = _(
        "The beginning of a topic; an agent's address; a tenant; a user's name; an id's first characters."
    )
    fields_shown = FOLLOW
    actions = None  # one at a time

    def meant(self, term: str) -> Q:
        return super().meant(term) | Q(agent=term) | Q(owner__in=users_named(term))

    def has_delete_permission(self, request: HttpRequest, obj: Follow | None = None) -> bool:
        return bool(request.user.has_perm("ravi.delete_follow"))

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[Any, int], set[str], list[str]]:
        """What they were still to be given goes with them; nobody needs a permission for that."""
        return (
            [gettext("Follow: %(follow)s") % {"follow": follow} for follow in objs],
            {gettext("follows"): len(objs)},
            set(),
            [],
        )

    def delete_model(self, request: HttpRequest, obj: Follow) -> None:
        follow_rows.delete_follows(Follow.objects.filter(id=obj.id))

    @admin.display(description=_("conversation"))
    def conversation(self, follow: Follow) -> Any:
        return _link(follow.session) if follow.session else show.NONE

    @admin.display(description=_("deliveries go to"))
    def deliveries_go_to(self, follow: Follow) -> Any:
        return _link(follow.home) if follow.home else gettext("a new conversation")

    @admin.display(description=_("delivery"))
    def digest(self, follow: Follow) -> str:
        every = gettext("every %(time)s") % {"time": f"{follow.every_s} s"}
        return every if follow.every_s else gettext("at once")

    @admin.display(description=_("metadata"))
    def given(self, follow: Follow) -> str:
        return show.visible(json.dumps(follow.metadata, ensure_ascii=False))

    @admin.display(description=_("delivered last"))
    def last(self, follow: Follow) -> str:
        return show.moment(follow.last_at) if follow.last_at else show.NONE


@admin.register(Publication)
class PublicationAdmin(GraphAdmin):
    in_index = False
    list_display = ["topic", "tenant", "text", "followers", "delivered", "state", "published"]
    list_display_links = ["topic", "text"]
    list_filter = [State]
    search_help_text = _("The beginning of a topic; a tenant; a message's id; an id's first characters.")
    fields_shown = PUBLICATION

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("owner", "run")  # no owner when the user was just deleted

    def meant(self, term: str) -> Q:
        return super().meant(term) | Q(message_id=term)

    @admin.display(description=_("message"))
    def text(self, publication: Publication) -> str:
        return text_of(publication.body)

    @admin.display(description=_("published by"))
    def by(self, publication: Publication) -> Any:
        if publication.run_id:
            return show.link_to("run", publication.run_id, publication.body.get("sender", publication.run_id))
        return publication.owner or gettext("the site")

    @admin.display(description=_("left out"))
    def left_out(self, publication: Publication) -> str:
        """Whoever may not receive it, or is gone: known when the fan-out is done."""
        left = max(publication.followers - publication.delivered, 0)
        return str(left) if publication.done_at else gettext("%(count)s to come") % {"count": left}

    @admin.display(description=_("fan-out"))
    def state(self, publication: Publication) -> str:
        if publication.done_at:
            return show.word("done")
        said = {"used": publication.delivered, "limit": publication.followers}
        return gettext("%(used)s of %(limit)s") % said

    @admin.display(description=_("published"))
    def published(self, publication: Publication) -> str:
        return show.moment(publication.created_at)


def _link(session: Session) -> Any:
    return show.link_to("session", session.pk, show.visible(str(session)))


def text_of(body: Any) -> str:
    """The beginning of a message."""
    payload = body.get("payload", {}) if isinstance(body, dict) else {}
    if payload.get("kind") == "chat":
        content = payload.get("message", {}).get("content", [])
        said = " ".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    else:
        said = json.dumps(payload.get("data", payload), ensure_ascii=False)
    return show.snippet(said, 120)
