"""The OpenAPI description of the views, by drf-spectacular, which need not be an installed app."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import patched_settings
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

TITLE = "Ravi agents"

_MEANING = {
    400: "Bad input; `field` names what to fix. Nothing was written.",
    401: "No credentials, or wrong ones.",
    403: "One may see it but not do it; also a missing CSRF token beside a session cookie.",
    404: "There is no such thing, or it is somebody else's.",
    405: "Not with this method.",
    406: "Not in any of the accepted media types.",
    409: "The present state forbids it.",
    411: "A body without Content-Length.",
    413: "Too large. Nothing was written.",
    415: "The body is not application/json.",
    429: "Too many calls of this user; `Retry-After` says in how many seconds the next one may come.",
    500: "Our fault; it has been logged.",
    503: "A service behind this one cannot be reached.",
}


class ProblemSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable; for programs")
    message = serializers.CharField(help_text="For people")
    field = serializers.CharField(required=False, help_text="Which part of the request to fix")


class FaultSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="`required`, `unknown`, `invalid`, …")
    message = serializers.CharField()
    field = serializers.CharField(required=False)


class ErrorSerializer(serializers.Serializer[Any]):
    error = ProblemSerializer()
    errors = FaultSerializer(required=False, many=True, help_text="All faults of bad input, `error` is the first one")  # type: ignore[assignment]


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
    """Describe a view's method: its name, its answers by status (or by status and media type), its errors beside
    those that every call, or every call with a body, may give, and their media type where the view has several. The
    summary is the first line of the docstring."""
    everywhere = {406, 429, 500} if anonymous else {401, 406, 429, 500, 503}
    if request is not None and not anonymous:
        everywhere |= {400, 403, 411, 413, 415}
    refusals = {
        (status, media_type) if media_type else status: OpenApiResponse(ErrorSerializer, description=_MEANING[status])
        for status in sorted({*everywhere, *errors})
    }

    def decorate(method: Any) -> Any:
        # Else the description would build on the site's DEFAULT_SCHEMA_CLASS, which may be DRF's own.
        method.kwargs = {**getattr(method, "kwargs", {}), "schema": AutoSchema}
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


RETRY_AFTER = OpenApiParameter("Retry-After", int, "header", description="Seconds", response=[429])


def parameter(
    name: str, description: str, *, kind: Any = str, enum: Any = None, where: Literal["query", "header"] = "query"
) -> Any:
    """A query parameter or header."""
    return OpenApiParameter(name, kind, where, description=description, enum=enum)


@lru_cache(maxsize=16)  # a prefix with arguments is the client's to vary
def description(mount: str, script_name: str) -> dict[str, Any]:
    """The OpenAPI 3 document of the app mounted at `mount`. Kept: the code does not change."""
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
            "RequestAction": "ravi_django.runtime.people.answers.EVERY_ACTION",
        },
        "COMPONENT_SPLIT_REQUEST": False,
        "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums"],
        "CAMELIZE_NAMES": False,
        "SCHEMA_PATH_PREFIX": f"/{mount}",
        "SCHEMA_PATH_PREFIX_TRIM": False,
        "SCHEMA_PATH_PREFIX_INSERT": "",
        "PREPROCESSING_HOOKS": [],
    }
    with patched_settings(settings), override("en"):
        generator = SchemaGenerator(patterns=[path(mount, include(urls.urlpatterns))])  # type: ignore[no-untyped-call]
        found: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    for address, operations in list(found["paths"].items()):
        if "{type}/" in address:
            found["paths"][address.replace("{type}/", "{namespace}/{type}/")] = _in_namespace(operations)
    return found


def _in_namespace(operations: dict[str, Any]) -> dict[str, Any]:
    place = {"in": "path", "name": "namespace", "schema": {"type": "string"}, "required": True}
    return {
        method: {
            **operation,
            "operationId": f"{operation['operationId']}_in_namespace",
            "parameters": [place, *operation["parameters"]],
        }
        for method, operation in operations.items()
    }
