"""The OpenAPI description, and the pages that show it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.templatetags.static import static
from drf_spectacular.views import SpectacularRedocView, SpectacularSwaggerView
from rest_framework.exceptions import NotFound
from rest_framework.renderers import TemplateHTMLRenderer
from rest_framework.response import Response

from ravi_django.api import openapi
from ravi_django.api.base import ApiView


class SchemaView(ApiView):
    @openapi.documented("schema", ok={(200, "application/json"): dict})
    def get(self, request: Any) -> Response:
        """The OpenAPI 3 document of this API."""
        mount = request.path_info.lstrip("/").removesuffix("schema/")
        return Response(openapi.description(mount, request.META.get("SCRIPT_NAME", "")))


class PageView(ApiView):
    """A page of drf-spectacular with the files of its sidecar. The browser loads nothing from other hosts, neither code
    nor the fonts and the logo that Redoc uses."""

    renderer_classes = [TemplateHTMLRenderer]
    schema = None
    title: Any = openapi.TITLE
    files: dict[str, str] = {}  # files of the sidecar, by their names in the template

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        for app in ("drf_spectacular", "drf_spectacular_sidecar"):
            if not apps.is_installed(app):
                raise NotFound(f"this site has no page of the API: {app} is not in INSTALLED_APPS")

    def get(self, request: Any) -> Response:
        response: Response = super().get(request)  # type: ignore[misc]
        files = {name: static(f"drf_spectacular_sidecar/{file}") for name, file in self.files.items()}
        response.data = {**response.data, **files}
        here = f"'self' {urlsplit(static('')).netloc}"  # static files may have a host of their own
        response["Content-Security-Policy"] = (
            f"default-src {here}; script-src {here} 'unsafe-inline'; style-src {here} 'unsafe-inline'; "
            f"img-src {here} data:; font-src {here} data:; worker-src blob:; frame-ancestors 'none'"
        )
        return response


class SwaggerView(PageView, SpectacularSwaggerView):
    url = "../schema/"
    files = {
        "swagger_ui_css": "swagger-ui-dist/swagger-ui.css",
        "swagger_ui_bundle": "swagger-ui-dist/swagger-ui-bundle.js",
        "swagger_ui_standalone": "swagger-ui-dist/swagger-ui-standalone-preset.js",
        "favicon_href": "swagger-ui-dist/favicon-32x32.png",
    }


class RedocView(PageView, SpectacularRedocView):
    url = "../../schema/"
    files = {"redoc_standalone": "redoc/bundles/redoc.standalone.js"}
