"""The OpenAPI description."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from ravi_django.api import openapi
from ravi_django.api.base import ApiView


class SchemaView(ApiView):
    @openapi.documented("schema", ok={(200, "application/json"): dict}, errors=[404])
    def get(self, request: Any) -> Response:
        """The OpenAPI 3 document of this API. Needs drf-spectacular (`pip install ravi-django[openapi]`)."""
        if not openapi.INSTALLED:
            raise NotFound("there is no schema here: the site has no drf-spectacular, see ravi-django[openapi]")
        mount = request.path_info.lstrip("/").removesuffix("schema/")
        return Response(openapi.description(mount, request.META.get("SCRIPT_NAME", "")))
