"""Upload, list, read and delete files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from django.utils.http import content_disposition_header, quote_etag
from drf_spectacular.types import OpenApiTypes
from rest_framework.exceptions import NotFound
from rest_framework.parsers import MultiPartParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response

from ravi_django.api.base import ApiViewSet, non_atomic
from ravi_django.api.openapi import documented
from ravi_django.models import RaviFile
from ravi_django.runs.files import files
from ravi_django.services import shapes

ENVELOPE_BYTES = 64 * 1024  # of the body, besides the file
CHUNK = 64 * 1024  # bytes


class _Content(BaseRenderer):
    """Any type that the client accepts: the file has one only."""

    media_type = "*/*"
    format = ""


@non_atomic  # the row of an upload is committed before its content is stored
class FileViewSet(ApiViewSet):
    queryset = RaviFile.objects.all()
    serializer_class = shapes.FileSerializer
    parser_classes = [MultiPartParser]
    limit = "files"

    def get_renderers(self) -> Any:
        return [_Content() if self.action == "retrieve" else JSONRenderer()]

    body_field = "file"

    def longest_body(self) -> int:
        return files.max_bytes() + ENVELOPE_BYTES

    def get_queryset(self) -> Any:
        """Of the user alone, except to read a content."""
        rows = super().get_queryset()
        return rows if self.action == "retrieve" else rows.filter(owner=self.request.user)

    @documented("files_list", ok={200: shapes.FileSerializer(many=True)}, errors=[400])
    def list(self, request: Any) -> Response:
        """Files of the user, newest first."""
        return self.page(self.get_queryset())

    @documented(
        "files_create", request={"multipart/form-data": shapes.UploadSerializer}, ok={201: shapes.FileSerializer}
    )
    def create(self, request: Any) -> Response:
        """Upload a file, for the content blocks of a run's input.

        Its type is found by the content. A file that no run refers to is deleted after a day.
        """
        body = self.validated(shapes.UploadSerializer)
        return self.response_of(files.upload(request.user, body["file"]), 201)

    @documented(
        "files_read",
        # Generators of clients leave a response of any type out.
        ok={(200, "application/octet-stream"): OpenApiTypes.BINARY, (200, "*/*"): OpenApiTypes.BINARY},
        errors=[404],
        media_type="application/json",
    )
    def retrieve(self, request: Any, id: UUID) -> HttpResponseBase:
        """The content of a file, as an attachment. For its owner and those who may read a conversation with it.

        Its ETag is the SHA-256: 304 if `If-None-Match` has it. A browser asks again before each use of its copy.
        """
        row = self.get_object()
        unchanged = get_conditional_response(request, quote_etag(row.sha256))
        response = self._content(request, row) if unchanged is None else unchanged
        response["ETag"] = quote_etag(row.sha256)
        response["Cache-Control"] = "private, no-cache"  # a right may end, and the next person may use the browser
        return response

    def _content(self, request: Any, row: RaviFile) -> StreamingHttpResponse:
        try:
            content = row.content.open("rb")
        except FileNotFoundError:
            raise NotFound(f"the content of file {row.id} is gone") from None
        chunks = (
            _chunks(content) if isinstance(request._request, ASGIRequest) else iter(lambda: content.read(CHUNK), b"")
        )
        response = StreamingHttpResponse(chunks, content_type=row.type)
        response._resource_closers.append(content.close)  # type: ignore[attr-defined]
        response["Content-Length"] = row.size
        response["Content-Disposition"] = content_disposition_header(True, row.name)
        response["X-Content-Type-Options"] = "nosniff"
        return response

    @documented("files_delete", ok={204: None}, errors=[403, 404, 409])
    def destroy(self, request: Any, id: UUID) -> Response:
        """Delete a file of the user. 409 while a conversation has it."""
        files.discard(self.get_object())
        return Response(status=204)


async def _chunks(content: Any) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(content.read, CHUNK):
        yield chunk
