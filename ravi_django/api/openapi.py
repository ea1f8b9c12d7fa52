"""The OpenAPI document, made by drf-spectacular, which need not be an installed app."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

from django.apps import apps
from django.templatetags.static import static
from django.utils.module_loading import import_string
from django_filters import filters as django_filters
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import build_bearer_security_scheme_object
from drf_spectacular.settings import patched_settings
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from drf_spectacular.views import SpectacularRedocView, SpectacularSwaggerView
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.renderers import TemplateHTMLRenderer
from rest_framework.response import Response

from ravi_django.api import filters
from ravi_django.api.base import ApiView
from ravi_django.kernel.identity import ADDRESS, PART
from ravi_django.services.fields import ANY, StrictSerializer, TextField
from ravi_django.services.problems import STATUSES

TITLE = "AI agents"
BODIES = {"agui_run": "ag_ui.core.RunAgentInput"}  # types of others, loaded by the first call of `description`


class ProblemSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable; for programs")
    message = serializers.CharField(help_text="For people")
    field = serializers.CharField(required=False, help_text="The part of the request to fix")


class FaultSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="`required`, `unknown`, `invalid`, …")
    message = serializers.CharField()
    field = serializers.CharField(required=False)


class ErrorSerializer(serializers.Serializer[Any]):
    error = ProblemSerializer()
    errors = FaultSerializer(required=False, many=True, help_text="All faults of bad input, `error` is the first one")  # type: ignore[assignment]


def fields_of(model: Any) -> dict[str, Any]:
    """The JSON Schema of a pydantic model in OpenAPI 3.0, without the details of what is in its fields."""
    schema: dict[str, Any] = model.model_json_schema()
    fields = {name: _flat(field) for name, field in schema["properties"].items()}
    return {"type": "object", "properties": fields, "required": schema["required"]}


def _flat(field: dict[str, Any]) -> dict[str, Any]:
    kinds = field.get("anyOf", [field])
    first = next(kind for kind in kinds if kind.get("type") != "null")
    shape: dict[str, Any] = {"type": first["type"]} if "type" in first else ANY
    if "items" in first:
        shape["items"] = {"type": "object", "additionalProperties": {}}
    return {**shape, "nullable": True} if len(kinds) > 1 else shape


class Schema(AutoSchema):
    """Adds what the serializers and the filters know of their values."""

    def _get_format_parameters(self) -> list[Any]:
        return []  # the header Accept decides

    def _get_request_body(self, direction: Any = "request") -> Any:
        body = super()._get_request_body(direction)  # type: ignore[no-untyped-call]
        if (model := BODIES.get(self.get_operation_id())) is not None:
            body["content"]["application/json"]["schema"] = fields_of(import_string(model))
            body["required"] = True
        return body

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Any:
        shape = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if isinstance(serializer, StrictSerializer):
            shape["additionalProperties"] = False
        if (others := getattr(serializer, "others", None)) is not None:  # fields of another protocol
            shape["properties"] = others | shape["properties"]
            shape["additionalProperties"] = {"enum": [None], "nullable": True}
        return shape

    def _map_serializer_field(self, field: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        shape = super()._map_serializer_field(field, direction, bypass_extensions)  # type: ignore[no-untyped-call]
        if isinstance(field, TextField) and not field.allow_blank:
            shape["minLength"] = 1
        return shape

    def _resolve_path_parameters(self, variables: Any) -> Any:
        parameters = super()._resolve_path_parameters(variables)  # type: ignore[no-untyped-call]
        for one in parameters:
            if one["name"] in ("namespace", "type", "key", "source"):
                one["schema"]["pattern"] = f"^{PART}$"
        return parameters

    def _get_pagination_parameters(self) -> Any:
        parameters = super()._get_pagination_parameters()  # type: ignore[no-untyped-call]
        for one in parameters:
            if one["name"] == "limit":
                one["schema"]["minimum"] = 1
        return parameters

    def _get_filter_parameters(self) -> Any:
        parameters = super()._get_filter_parameters()  # type: ignore[no-untyped-call]
        view: Any = self.view
        rules = view.filterset_class.get_filters() if parameters else {}
        for one in parameters:
            one["schema"].update(_schema_of(one["name"], rules[one["name"]]))
        return parameters


def _schema_of(name: str, rule: Any) -> dict[str, Any]:
    """What the form checks of a filter's value, for its JSON Schema."""
    match rule:
        case filters.AddressFilter():
            return {"type": "string", "pattern": ADDRESS}
        case filters.MomentFilter():
            return {"type": "string", "format": "date-time"}
        case django_filters.OrderingFilter():
            return {"minItems": 1}
        case django_filters.CharFilter():
            most = {"maxLength": rule.extra["max_length"]} if "max_length" in rule.extra else {}
            return most if name == "search" else {"minLength": 1, "pattern": r"\S", **most}
        case django_filters.ChoiceFilter():
            return {"type": "string"}
    return {}


def documented(
    operation: str,
    *,
    ok: dict[Any, Any],
    errors: Iterable[int] = (),
    request: Any = None,
    parameters: Iterable[Any] = (),
    anonymous: bool = False,
    media_type: str = "",
) -> Callable[[Any], Any]:
    """Describe a view's method: its name, its answers by status (or by status and media type), and its errors. Errors
    that every call, or every call with a body, may have are added. `media_type` is that of the errors, if the view has
    several. The first line of the docstring is the summary."""
    everywhere = {406, 429, 500} if anonymous else {401, 406, 429, 500, 503}
    if request is not None and not anonymous:
        everywhere |= {400, 403, 411, 413, 415}
    refusals = {
        (status, media_type) if media_type else status: OpenApiResponse(
            ErrorSerializer, description=STATUSES[status][1]
        )
        for status in sorted({*everywhere, *errors})
    }

    def decorate(method: Any) -> Any:
        # Not the site's DEFAULT_SCHEMA_CLASS, which may be DRF's own.
        method.kwargs = {**getattr(method, "kwargs", {}), "schema": Schema}
        summary, _, rest = (method.__doc__ or "").strip().partition("\n")
        return extend_schema(
            operation_id=operation,
            summary=summary,
            description=" ".join(rest.split()) or summary,
            request=request,
            responses={**ok, **refusals},
            parameters=[*parameters, RETRY_AFTER],
            tags=[operation.split("_")[0]],
            auth=[{}] if anonymous else None,  # type: ignore[list-item]
        )(method)

    return decorate


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Before that of drf-spectacular, which has one name for the words Token and Bearer."""

    target_class = "rest_framework.authentication.TokenAuthentication"
    match_subclasses = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return "bearerAuth" if self.target.keyword == "Bearer" else "tokenAuth"

    def get_security_definition(self, auto_schema: Any) -> Any:
        return build_bearer_security_scheme_object("Authorization", self.target.keyword)  # type: ignore[no-untyped-call]


class TicketScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "ravi_django.api.base.TicketAuthentication"
    name = "ticketAuth"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "query", "name": "ticket"}


RETRY_AFTER = OpenApiParameter("Retry-After", int, "header", description="Seconds", response=[429])


COUNT = {"type": "integer", "minimum": 1}
ADDRESSED = {"type": "string", "pattern": ADDRESS}


def parameter(
    name: str,
    description: str,
    *,
    kind: Any = str,
    enum: Any = None,
    where: Literal["query", "path", "header"] = "query",
    required: bool = False,
) -> Any:
    """A parameter of an operation. `kind` is a type or a JSON Schema."""
    return OpenApiParameter(name, kind, where, required=required, description=description, enum=enum)


@lru_cache(maxsize=16)  # clients choose the arguments of a prefix
def description(mount: str, script_name: str) -> dict[str, Any]:
    """The OpenAPI 3 document of the app mounted at `mount`."""
    from django.urls import include, path
    from django.utils.translation import override

    from ravi_django import __version__, urls

    settings = {
        "TITLE": TITLE,
        "DESCRIPTION": "Durable runs of LLM agents.",
        "VERSION": __version__,
        "SERVERS": [{"url": script_name or "/"}],
        "ENUM_NAME_OVERRIDES": {
            "RunStatus": "ravi_django.models.Status",
            "RequestStatus": "ravi_django.models.HumanRequest.Status",
            "RequestKind": "ravi_django.models.HumanRequest.Kind",
            "RequestAction": "ravi_django.people.answers.EVERY_ACTION",
        },
        "COMPONENT_SPLIT_REQUEST": False,
        "COMPONENT_SPLIT_PATCH": False,  # a field that is required is so in PATCH
        "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums"],
        "CAMELIZE_NAMES": False,
        "SCHEMA_PATH_PREFIX": f"/{mount}",
        "SCHEMA_PATH_PREFIX_TRIM": False,
        "SCHEMA_PATH_PREFIX_INSERT": "",
        "PREPROCESSING_HOOKS": [],
    }
    with patched_settings(settings), override("en"):
        generator = SchemaGenerator(patterns=[path(mount, include(urls.urlpatterns))])  # type: ignore[no-untyped-call]
        document: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    for address, operations in list(document["paths"].items()):
        if "{type}/" in address:
            document["paths"][address.replace("{type}/", "{namespace}/{type}/")] = _in_namespace(operations)
    return document


def _in_namespace(operations: dict[str, Any]) -> dict[str, Any]:
    namespace = {
        "in": "path",
        "name": "namespace",
        "schema": {"type": "string", "pattern": f"^{PART}$"},
        "required": True,
    }
    return {
        method: {
            **operation,
            "operationId": f"{operation['operationId']}_in_namespace",
            "parameters": [namespace, *operation["parameters"]],
        }
        for method, operation in operations.items()
    }


class SchemaView(ApiView):
    @documented("schema", ok={(200, "application/json"): dict})
    def get(self, request: Any) -> Response:
        """The OpenAPI 3 document of this API."""
        mount = request.path_info.lstrip("/").removesuffix("schema/")
        return Response(description(mount, request.META.get("SCRIPT_NAME", "")))


class PageView(ApiView):
    """A page of drf-spectacular with the files of its sidecar. The browser loads nothing from other hosts, neither code
    nor the fonts and the logo that Redoc uses."""

    renderer_classes = [TemplateHTMLRenderer]
    schema = None
    title: Any = TITLE
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
