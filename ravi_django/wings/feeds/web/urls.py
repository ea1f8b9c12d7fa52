"""The addresses of feeds."""

from typing import Any

from django.urls import path

from ravi_django.wings.feeds.web.api_follows import EmitView, FollowViewSet
from ravi_django.wings.feeds.web.api_hooks import HookView


def routes(router: Any) -> list[Any]:
    router.register("follows", FollowViewSet, "follow")
    return [
        path("topics/<str:type>/<str:source>/emit/", EmitView.as_view(), name="topic-emit"),
        path(
            "topics/<str:namespace>/<str:type>/<str:source>/emit/",
            EmitView.as_view(schema=None),
            name="topic-emit-in-namespace",
        ),
        path("sources/<uuid:id>/hook/", HookView.as_view(), name="source-hook"),
    ]
