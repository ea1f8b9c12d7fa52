from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.generic import TemplateView

from ravi_django.runtime.catalog.registry import get_agent

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
View = Callable[..., HttpResponseBase]
AGENTS = ["react/assistant", "orchestrator/team"]


@method_decorator(never_cache, name="dispatch")
@method_decorator(ensure_csrf_cookie, name="dispatch")  # the page's script sends the cookie's token with each POST
class ChatView(LoginRequiredMixin, TemplateView):
    """The chat page. Everything that moves on it comes over REST and the websocket, as any other client gets it."""

    template_name = "chat.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        model = getattr(get_agent(AGENTS[0]), "model", None)
        return super().get_context_data(agents=AGENTS, model=getattr(model, "name", ""), **kwargs)


def page(view: View) -> View:
    """One of the demo's own pages: its browser runs no inline script or style, and nothing from elsewhere."""

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        response["Content-Security-Policy"] = POLICY
        return response

    return respond
