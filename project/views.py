import json
import os
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
from django.contrib.auth.mixins import UserPassesTestMixin
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views import View as ClassView

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
View = Callable[..., HttpResponseBase]


def page(view: View) -> View:
    """One of the demo's own pages: its browser runs no inline script or style, and nothing from elsewhere."""

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        response["Content-Security-Policy"] = POLICY
        return response

    return respond


WORKER = os.environ.get("DEMO_WORKER", "")  # the worker's pid file, of `make demo`


def tour(request: HttpRequest) -> dict[str, Any]:
    """For templates: whether the user may kill the demo's worker."""
    user = getattr(request, "user", AnonymousUser())  # none on the page of an early error
    return {"may_kill_worker": bool(WORKER) and (user.is_staff or user.get_username() == "demo")}


class KillWorkerView(UserPassesTestMixin, ClassView):
    """SIGKILL to the demo's worker. `make demo` starts another one, which continues its runs."""

    raise_exception = True

    def test_func(self) -> bool:
        return tour(self.request)["may_kill_worker"]

    def post(self, request: HttpRequest) -> HttpResponse:
        try:
            noted = json.loads(Path(WORKER).read_text())
            if abs(psutil.Process(noted["pid"]).create_time() - noted["created"]) < 2.0:  # a pid is reused
                os.killpg(noted["pid"], signal.SIGKILL)
        except (OSError, ValueError, psutil.Error):
            pass  # it is dead already
        return HttpResponse(status=204)  # the browser stays on the page
