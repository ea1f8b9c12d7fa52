"""The REST surface: `path("ravi/", include("ravi_django.urls"))`, under any prefix, which may have arguments."""

from functools import wraps
from typing import Any

from django.urls import path, re_path

from ravi_django.api.agents import AgentsView, AgentView
from ravi_django.api.board import BoardView
from ravi_django.api.decide import DecideView
from ravi_django.api.events import EventsView
from ravi_django.api.follows import EmitView, FollowsView, FollowView
from ravi_django.api.health import HealthView
from ravi_django.api.hooks import HookView
from ravi_django.api.metrics import MetricsView
from ravi_django.api.nothing import NothingView
from ravi_django.api.requests import AnswerView, ReassignView, RequestsView, RequestView
from ravi_django.api.runs import CancelView, ForkView, JournalView, RetryView, RunsView, RunView, SignalsView
from ravi_django.api.schema import SchemaView
from ravi_django.api.sessions import MessagesView, SessionsView, SessionView
from ravi_django.api.tickets import TicketsView
from ravi_django.api.tree import TreeView
from ravi_django.api.usage import TodayView, UsageView

app_name = "ravi"

urlpatterns = [
    path("agents/", AgentsView.as_view(), name="agents"),
    path("agents/<str:type>/<str:key>/", AgentView.as_view(), name="agent"),
    path("agents/<str:namespace>/<str:type>/<str:key>/", AgentView.as_view(schema=None), name="agent-in-namespace"),
    path("runs/", RunsView.as_view(), name="runs"),
    path("runs/<uuid:id>/", RunView.as_view(), name="run"),
    path("runs/<uuid:id>/journal/", JournalView.as_view(), name="run-journal"),
    path("runs/<uuid:id>/tree/", TreeView.as_view(), name="run-tree"),
    path("runs/<uuid:id>/events/", EventsView.as_view(), name="run-events"),
    path("runs/<uuid:id>/cancel/", CancelView.as_view(), name="run-cancel"),
    path("runs/<uuid:id>/retry/", RetryView.as_view(), name="run-retry"),
    path("runs/<uuid:id>/fork/", ForkView.as_view(), name="run-fork"),
    path("runs/<uuid:id>/signals/", SignalsView.as_view(), name="run-signals"),
    path("sessions/", SessionsView.as_view(), name="sessions"),
    path("sessions/<uuid:id>/", SessionView.as_view(), name="session"),
    path("sessions/<uuid:id>/messages/", MessagesView.as_view(), name="session-messages"),
    path("sessions/<uuid:id>/board/", BoardView.as_view(), name="session-board"),
    path("requests/", RequestsView.as_view(), name="requests"),
    path("requests/<uuid:id>/", RequestView.as_view(), name="request"),
    path("requests/<uuid:id>/answer/", AnswerView.as_view(), name="request-answer"),
    path("requests/<uuid:id>/reassign/", ReassignView.as_view(), name="request-reassign"),
    path("decide/<str:token>/", DecideView.as_view(), name="decide"),
    path("follows/", FollowsView.as_view(), name="follows"),
    path("follows/<uuid:id>/", FollowView.as_view(), name="follow"),
    path("topics/<str:type>/<str:source>/emit/", EmitView.as_view(), name="topic-emit"),
    path(
        "topics/<str:namespace>/<str:type>/<str:source>/emit/",
        EmitView.as_view(schema=None),
        name="topic-emit-in-namespace",
    ),
    path("metrics/", MetricsView.as_view(), name="metrics"),
    path("usage/", UsageView.as_view(), name="usage"),
    path("usage/today/", TodayView.as_view(), name="usage-today"),
    path("sources/<uuid:id>/hook/", HookView.as_view(), name="source-hook"),
    path("tickets/", TicketsView.as_view(), name="tickets"),
    path("health/", HealthView.as_view(), name="health"),
    path("schema/", SchemaView.as_view(), name="schema"),
    # The last one takes the rest, whatever it is: a site's own 404 page is no JSON.
    re_path(r"^[\s\S]*\Z", NothingView.as_view(), name="nothing"),
]


def _without_prefix(view: Any, own: Any) -> Any:
    """The view, called without the arguments of the site's prefix: a version or tenant, for instance."""

    @wraps(view)
    def called(request: Any, *args: Any, **kwargs: Any) -> Any:
        return view(request, **{name: kwargs[name] for name in own})

    return called


for _pattern in urlpatterns:
    _pattern.callback = _without_prefix(_pattern.callback, _pattern.pattern.converters)
