"""Webhooks of sources. They need no login: the body's signature authenticates the sender."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import AllowAny
from rest_framework.response import Response

from ravi_django.api.base import ApiView
from ravi_django.api.openapi import documented, parameter
from ravi_django.conf import conf
from ravi_django.kernel import InputTooLargeError
from ravi_django.services.problems import Problem
from ravi_django.wings.feeds.fetching import signatures
from ravi_django.wings.feeds.sources import webhooks

REFUSED = "no such webhook, or its signature is missing, wrong or too old"
LATER_S = 60

HEADERS = [
    parameter(
        signatures.SCHEMES[signatures.RAVI],
        "t=<seconds since 1970>,v1=<hex>: HMAC-SHA256 of `<t>.<body>` by the source's secret; within 300 s.",
        where="header",
    ),
    parameter(
        signatures.SCHEMES[signatures.GITHUB],
        "sha256=<hex>: HMAC-SHA256 of the body, for a source whose option `scheme` is `github`.",
        where="header",
    ),
]


class HookBodySerializer(serializers.Serializer[Any]):
    """An object, or an array of objects, with any fields: the source's options map them to an item's fields."""

    id = serializers.CharField(required=False, help_text="The item's id; a repeated id is not a second item")
    title = serializers.CharField(required=False)
    text = serializers.CharField(required=False)
    url = serializers.CharField(required=False)


class HookAnswerSerializer(serializers.Serializer[Any]):
    items = serializers.IntegerField(help_text="Items in the body")
    new = serializers.IntegerField(help_text="Items that were not known before")


class HookView(ApiView):
    permission_classes = [AllowAny]
    throttle_classes = []  # the site's limits for anonymous users would lose events
    reads_chunks = True
    body_field = "body"

    def longest_body(self) -> int:
        return int(conf.MAX_INPUT_BYTES)

    def get_authenticators(self) -> list[Any]:
        return []

    def get_authenticate_header(self, request: Any) -> str:
        return str(signatures.SCHEMES[signatures.RAVI])

    @documented(
        "sources_hook",
        request=HookBodySerializer,
        ok={202: HookAnswerSerializer},
        errors=[400, 401, 404, 413, 503],
        parameters=HEADERS,
        anonymous=True,
    )
    def post(self, request: Any, id: UUID) -> Response:
        """Post items to a webhook source; anonymous: the signature authenticates the sender.

        401 for a wrong signature, and for a source that does not exist, is disabled or is not a webhook. A repeat is
        safe: a known item is not a second one. 503 if the source's agent cannot receive items now.
        """
        limit = self.longest_body()
        body = request._request.read(limit + 1)
        if len(body) > limit:  # a chunked body under WSGI
            raise InputTooLargeError(f"the body has more than {limit} bytes", field="body")
        try:
            items, received = webhooks.receive(id, request.headers, body)
        except webhooks.UnsignedError:
            raise AuthenticationFailed(REFUSED) from None
        except webhooks.NotTakenError as error:
            problem = Problem(503, "the source cannot receive items now; send them again later")
            later = {"Retry-After": str(int(error.again_in_s) or LATER_S)}
            return Response(problem.body(), status=problem.status, headers=later)
        return Response({"items": items, "new": received.new}, status=202)
