"""Webhooks of sources: the one address besides health that needs no login. The body's signature says who posts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import serializers, status
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import AllowAny
from rest_framework.response import Response

from ravi_django.api.base import ApiView
from ravi_django.api.openapi import documented, parameter
from ravi_django.capabilities.feeds import signatures
from ravi_django.conf import conf
from ravi_django.kernel import InputTooLargeError
from ravi_django.runtime.sources import webhooks
from ravi_django.services.problems import Problem

REFUSED = "no such webhook, or a signature that is missing, wrong or too old"
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
    """An object, or an array of objects, of any fields: the source's options say which is the item's what."""

    id = serializers.CharField(required=False, help_text="The item's own; the same again is no second item")
    title = serializers.CharField(required=False)
    text = serializers.CharField(required=False)
    url = serializers.CharField(required=False)


class HookAnswerSerializer(serializers.Serializer[Any]):
    items = serializers.IntegerField(help_text="In the body")
    new = serializers.IntegerField(help_text="That were not known before")


class HookView(ApiView):
    permission_classes = [AllowAny]
    throttle_classes = []  # the site's limits for anonymous visitors would lose events
    reads_chunks = True

    def get_authenticators(self) -> list[Any]:
        return []  # a cookie or a token changes nothing here

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
        """Bring a webhook source something new; anonymous: the signature says who posts.

        401 for a wrong signature, and alike for a source that is not there, switched off or no webhook. What was
        brought before is no second item, so that a repeat is safe. 503 when the source's agent cannot be told now.
        """
        limit = int(conf.MAX_INPUT_BYTES)
        body = request._request.read(limit + 1)
        if len(body) > limit:  # before anything else: it is said to everybody
            raise InputTooLargeError(f"the body has more than {limit} bytes", field="body")
        try:
            items, told = webhooks.receive(id, request.headers, body)
        except webhooks.UnsignedError:
            raise AuthenticationFailed(REFUSED) from None
        except webhooks.NotTakenError as error:
            problem = Problem(503, "the source cannot take it now; send it again later")
            later = {"Retry-After": str(int(error.again_in_s) or LATER_S)}
            return Response(problem.body(), status=problem.status, headers=later)
        return Response({"items": items, "new": told.new}, status=status.HTTP_202_ACCEPTED)
