"""Upload a file, and read it again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.http import content_disposition_header
from drf_spectacular.types import OpenApiTypes
from rest_framework.exceptions import NotFound
from rest_framework.parsers import MultiPartParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response

from ravi_django.api.base import ApiViewSet
from ravi_django.api.openapi import documented
from ravi_django.kernel import InputTooLargeError
from ravi_django.models import RaviFile
from ravi_django.runtime.files import files
from ravi_django.services import shapes

ENVELOPE_BYTES = 64 * 1024  # of the body, besides the file


class _Content(BaseRenderer):
    """Any type that the client accepts: the file has one only."""

    media_type = "*/*"
    format = ""


class FileViewSet(ApiViewSet):
    queryset = RaviFile.objects.all()
    serializer_class = shapes.FileSerializer
    parser_classes = [MultiPartParser]
    limit = "files"

    def get_renderers(self) -> list[Any]:
        return [_Content() if self.action == "retrieve" else JSONRenderer()]

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        # Before the check of the CSRF token, which reads the body.
        if int(request.META.get("CONTENT_LENGTH") or 0) > files.max_bytes() + ENVELOPE_BYTES:
            raise InputTooLargeError(f"a file has at most {files.max_bytes()} bytes", field="file")
        super().initial(request, *args, **kwargs)

    @documented(
        "files_create", request={"multipart/form-data": shapes.UploadSerializer}, ok={201: shapes.FileSerializer}
    )
    def create(self, request: Any) -> Response:
        """Upload a file, for the content blocks of a run's input.

        Its type is found by the content. A file that no run refers to is deleted after a day.
        """
        given = self.given(shapes.UploadSerializer)
        return self.shown(files.upload(request.user, given["file"]), 201)

    @documented("files_read", ok={(200, "*/*"): OpenApiTypes.BINARY}, errors=[404], media_type="application/json")
    def retrieve(self, request: Any, id: UUID) -> HttpResponse:
        """The content of a file, as an attachment. For its owner and those who may read a conversation with it."""
        row = self.get_object()
        try:
            with row.content.open("rb") as content:
                response = HttpResponse(content.read(), content_type=row.type)
        except FileNotFoundError:
            raise NotFound(f"the content of file {id} is gone") from None
        response["Content-Disposition"] = content_disposition_header(True, row.name)
        response["X-Content-Type-Options"] = "nosniff"
        return response
