"""The REST API: `path("ravi/", include("ravi_django.urls"))`. The prefix may have arguments."""

from functools import wraps
from typing import Any

from django.urls import path, re_path
from rest_framework.routers import SimpleRouter

from ravi_django import wing
from ravi_django.api.agents import AgentViewSet
from ravi_django.api.base import NothingView
from ravi_django.api.decide import DecideView
from ravi_django.api.events import EventViewSet, TicketsView
from ravi_django.api.files import FileViewSet
from ravi_django.api.metrics import HealthView, MetricsView, TodayView, UsageViewSet
from ravi_django.api.openapi import RedocView, SchemaView, SwaggerView
from ravi_django.api.requests import RequestViewSet
from ravi_django.api.runs import OperatedRunViewSet, RunViewSet
from ravi_django.api.sessions import SessionViewSet
from ravi_django.conf import conf
from ravi_django.ui.chat import ChatView, HomeView, NoPageView, PanelView
from ravi_django.ui.dashboard import DashboardView
from ravi_django.ui.runs import ExportView, RunView

app_name = "ravi"


class Router(SimpleRouter):
    """Also routes DELETE on a list: the query or the body names the row."""

    _list: Any
    _list, *_others = SimpleRouter.routes
    routes = [_list._replace(mapping={**_list.mapping, "delete": "destroy_named"}), *_others]


router = Router(use_regex_path=False)
router.register("runs", RunViewSet, "run")
router.register("sessions", SessionViewSet, "session")
router.register("requests", RequestViewSet, "request")
router.register("usage", UsageViewSet, "usage")

pages = [
    path("", HomeView.as_view(), name="home"),
    path("ui/chat/", ChatView.as_view(), name="chat"),
    path("ui/chat/<uuid:id>/", ChatView.as_view(), name="chat-session"),
    path("ui/runs/<uuid:id>/", RunView.as_view(), name="run-page"),
    path("ui/runs/<uuid:id>/export/", ExportView.as_view(), name="run-export"),
    *(
        path(
            f"ui/runs/<uuid:id>/{action}/",
            OperatedRunViewSet.as_view({"post": action}, schema=None),
            name=f"run-page-{action}",
        )
        for action in ("cancel", "retry", "fork", "signals")
    ),
    path("ui/dashboard/", DashboardView.as_view(), name="dashboard"),
    re_path(r"^ui/", NoPageView.as_view(), name="no-page"),
]

_of_wings = [pattern for _, routes in wing.each("urls") for pattern in routes(router)]
urlpatterns = [
    *router.urls,
    *_of_wings,
    path("runs/<uuid:id>/events/", EventViewSet.as_view({"get": "retrieve"}), name="run-events"),
    path("agents/", AgentViewSet.as_view({"get": "list"}), name="agent-list"),
    path("agents/<str:type>/<str:key>/", AgentViewSet.as_view({"get": "retrieve"}), name="agent-detail"),
    path(
        "agents/<str:namespace>/<str:type>/<str:key>/",
        AgentViewSet.as_view({"get": "retrieve"}, schema=None),
        name="agent-in-namespace",
    ),
    path("decide/<str:token>/", DecideView.as_view(), name="decide"),
    path("topics/<str:type>/<str:source>/events/", EventViewSet.as_view({"get": "topic"}), name="topic-events"),
    path(
        "topics/<str:namespace>/<str:type>/<str:source>/events/",
        EventViewSet.as_view({"get": "topic"}, schema=None),
        name="topic-events-in-namespace",
    ),
    path("files/", FileViewSet.as_view({"get": "list", "post": "create"}), name="file-list"),
    path("files/<uuid:id>/", FileViewSet.as_view({"get": "retrieve", "delete": "destroy"}), name="file-detail"),
    path("metrics/", MetricsView.as_view(), name="metrics"),
    path("usage/today/", TodayView.as_view(), name="usage-today"),
    path("tickets/", TicketsView.as_view(), name="tickets"),
    path("health/", HealthView.as_view(), name="health"),
    path("schema/", SchemaView.as_view(), name="schema"),
    path("ui/panel/", PanelView.as_view(), name="panel"),  # of the template tags, also on a site without pages
    *(pages if conf.PAGES else []),
    path("docs/", SwaggerView.as_view(), name="docs"),
    path("docs/redoc/", RedocView.as_view(), name="docs-redoc"),
    # All other addresses: the site's 404 page is not JSON.
    re_path(r"^[\s\S]*\Z", NothingView.as_view(), name="nothing"),
]


def _without_prefix(view: Any, names: Any) -> Any:
    """Call the view without the arguments of the site's prefix, such as a version or a tenant."""

    @wraps(view)
    def called(request: Any, *args: Any, **kwargs: Any) -> Any:
        return view(request, **{name: kwargs[name] for name in names})

    return called


for _pattern in urlpatterns:
    _pattern.callback = _without_prefix(_pattern.callback, _pattern.pattern.converters)
