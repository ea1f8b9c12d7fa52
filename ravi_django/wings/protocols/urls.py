"""Addresses of other protocols."""

from typing import Any

from django.urls import path, re_path

from ravi_django.wings.protocols.agui import AguiView
from ravi_django.wings.protocols.openai import ChatView, ModelsView, ModelView, NoEndpointView
from ravi_django.wings.protocols.responses import ResponsesView, ResponseView


def routes(router: Any) -> list[Any]:
    return [
        path("agui/<str:type>/<str:key>/", AguiView.as_view(), name="agui"),
        path("agui/<str:namespace>/<str:type>/<str:key>/", AguiView.as_view(schema=None), name="agui-in-namespace"),
        path("v1/models", ModelsView.as_view(), name="v1-models"),
        path("v1/models/<str:type>/<str:key>", ModelView.as_view(), name="v1-model"),
        path(
            "v1/models/<str:namespace>/<str:type>/<str:key>",
            ModelView.as_view(schema=None),
            name="v1-model-in-namespace",
        ),
        path("v1/chat/completions", ChatView.as_view(), name="v1-chat"),
        path("v1/responses", ResponsesView.as_view(), name="v1-responses"),
        path("v1/responses/<str:id>", ResponseView.as_view(), name="v1-response"),
        re_path(r"^v1/", NoEndpointView.as_view(), name="v1-nothing"),
    ]
