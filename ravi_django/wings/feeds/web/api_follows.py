"""The social graph: follows of the user's agents, and publishing to a topic."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from ravi_django import access
from ravi_django.api.base import ApiView, ApiViewSet
from ravi_django.api.filters import AddressFilter, Form
from ravi_django.api.openapi import ADDRESSED, documented, parameter
from ravi_django.kernel import InvalidInputError, SessionNotFoundError, TopicId
from ravi_django.models import Follow, Session
from ravi_django.people import site_rules
from ravi_django.runs.lifecycle.erasure_rows import delete_follows
from ravi_django.services.fields import (
    CONVERSATION,
    AgentField,
    ConversationField,
    IdField,
    NumberField,
    ObjectField,
    StrictSerializer,
    TextField,
    TimeField,
    TopicField,
    ValueField,
)
from ravi_django.wings.feeds.social import follows as social_follows, publications

NAMED = [
    parameter("agent", "The agent that follows, type/key.", kind=ADDRESSED, required=True),
    parameter("topic", "The topic, type/source.", kind=ADDRESSED, required=True),
    parameter("session", "For a follow of one conversation.", kind=CONVERSATION),
]


class FollowSerializer(serializers.Serializer[Any]):
    id = IdField()
    agent = serializers.CharField(help_text="type/key")
    topic = serializers.CharField(help_text="type/source")
    session = IdField(source="session_id", allow_null=True, help_text="Set for a follow of one conversation")
    home = IdField(source="home_id", allow_null=True, help_text="The session that gets deliveries; null: a new one")
    every_s = serializers.IntegerField(help_text="Seconds between deliveries; 0: each message at once")
    metadata = serializers.DictField(help_text="Metadata of the runs that deliveries start")
    last_at = TimeField(allow_null=True, help_text="Time of the last delivery, if every_s is set")
    created_at = TimeField()


class FollowNameSerializer(StrictSerializer):
    agent = AgentField()
    topic = TopicField()
    session = ConversationField(required=False, allow_null=True, help_text="Only for this conversation of the user")


class FollowRequestSerializer(FollowNameSerializer):
    every_s = NumberField(required=False, allow_null=True, min_value=0, max_value=social_follows.MAX_EVERY_S)
    metadata = ObjectField(required=False, allow_null=True)


class EmitSerializer(StrictSerializer):
    text = TextField(required=False, allow_null=True, allow_blank=True, help_text="Either text or data")
    data = ValueField(required=False, allow_null=True, help_text="Any JSON except null; or text")  # type: ignore[assignment]
    id = TextField(
        required=False, allow_null=True, max_length=publications.MAX_ID, help_text="A repeated id publishes nothing"
    )
    session = IdField(required=False, allow_null=True, help_text="A session of the user: publish in its tenant")


class EmittedSerializer(serializers.Serializer[Any]):
    message = serializers.CharField(source="message_id", help_text="The message's id")
    followers = serializers.IntegerField(help_text="Number of followers at publication")


class FollowFilters(FilterSet):
    agent = AddressFilter(help_text="Only follows of this agent, type/key.")
    topic = AddressFilter(kind=TopicId, help_text="Only follows of this topic, type/source.")

    class Meta:
        model = Follow
        fields: list[str] = []
        form = Form


class FollowViewSet(ApiViewSet):
    queryset = Follow.objects.all()
    serializer_class = FollowSerializer
    filterset_class = FollowFilters
    limit = "follows"

    @documented("follows_list", ok={200: FollowSerializer(many=True)}, errors=[400])
    def list(self, request: Any) -> Response:
        """Follows of the user's agents, newest first."""
        return self.page(self.filter_queryset(self.get_queryset()))

    @documented(
        "follows_create",
        request=FollowRequestSerializer,
        ok={201: FollowSerializer, 200: FollowSerializer},
        errors=[404],
    )
    def create(self, request: Any) -> Response:
        """Let an agent follow a topic for the user.

        201 with the follow; 200 if it exists, updated with the given `every_s` and `metadata`. A published message is
        delivered to a run of the agent that waits for it, or starts a run.
        """
        body = self.validated(FollowRequestSerializer)
        row, created = social_follows.add(
            body["agent"],
            body["topic"],
            user=request.user,
            **_scope(request.user, body.get("session")),
            every_s=body.get("every_s"),
            metadata=body.get("metadata"),
        )
        return self.response_of(row, 201 if created else 200)

    @documented("follows_delete_named", ok={204: None}, errors=[400, 403, 404, 413, 415], parameters=NAMED)
    def destroy_named(self, request: Any) -> Response:
        """End a follow by agent and topic.

        The query or a JSON body names the agent, the topic and, for a follow of one conversation, the session.
        Undelivered messages are dropped.
        """
        named = self.validated(FollowNameSerializer, request.data or request.query_params.dict())
        scope = _scope(request.user, named.get("session"))
        if not social_follows.unfollow(named["agent"], named["topic"], user=request.user, **scope):
            raise NotFound(f"{named['agent']} does not follow {named['topic']} for you")
        return Response(status=204)

    @documented("follows_read", ok={200: FollowSerializer}, errors=[404])
    def retrieve(self, request: Any, id: UUID) -> Response:
        """One follow."""
        return self.response_of(self.get_object())

    @documented("follows_delete", ok={204: None}, errors=[403, 404])
    def destroy(self, request: Any, id: UUID) -> Response:
        """End a follow. Undelivered messages are dropped."""
        delete_follows(self.get_queryset().filter(id=self.get_object().id))
        return Response(status=204)


class EmitView(ApiView):
    limit = "emit"

    @documented("topics_emit", request=EmitSerializer, ok={202: EmittedSerializer}, errors=[404, 409])
    def post(self, request: Any, type: str, source: str, namespace: str = "") -> Response:
        """Publish to the topic's present followers in the user's tenant.

        403 without the permission `ravi.emit_topic`, unless the topic is the user's own: its source is the user's id,
        or it is the output topic of an agent that the user owns.

        202 with the message's id and the number of followers. A repeat with the same `id` gets the same answer and
        publishes nothing; 409 if that id has another message on this topic.
        """
        topic = _topic_at(f"{namespace}/{type}/{source}" if namespace else f"{type}/{source}")
        body = self.validated(EmitSerializer)
        name = "text" if "text" in body else "data"
        if ("text" in body) == ("data" in body):
            raise InvalidInputError("send either text or data", field=name)
        if name == "text" and not body["text"].strip():
            raise InvalidInputError("text must not be empty", field="text")
        tenant = _scope(request.user, body.get("session"))["tenant"]
        access.check_emit(request.user, topic)
        try:
            row = publications.emit(topic, body[name], user=request.user, tenant=tenant, id=body.get("id"))
        except InvalidInputError as error:
            error.field = name if error.field == "data" else error.field
            raise
        return Response(EmittedSerializer(row).data, status=202)


def _scope(user: Any, session: UUID | str | None) -> dict[str, Any]:
    """The tenant that `user` acts in, and the session. A superuser too must own the session: their messages are not for
    followers of another tenant. Raises SessionNotFoundError."""
    theirs = site_rules.own_tenants(user)
    only = site_rules.only_one(theirs)
    if session is None or isinstance(session, str):
        return {"tenant": only, "session": session}
    row = Session.objects.filter(owner=user, id=session).first()
    if row is None or not (row.tenant == "" or theirs is None or row.tenant in theirs):
        raise SessionNotFoundError(session)
    return {"tenant": row.tenant or only, "session": row}


def _topic_at(path: str) -> TopicId:
    """The topic of an address. Raises NotFound for a malformed one."""
    try:
        return social_follows.topic_of(path)
    except InvalidInputError as error:
        raise NotFound(str(error)) from None
