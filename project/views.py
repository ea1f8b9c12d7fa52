import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
from django.contrib.auth.mixins import UserPassesTestMixin
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from django.views import View

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


class PrivatePages(MiddlewareMixin):
    """A page is for one person: no cache keeps it. Its browser runs no inline script or style, and loads nothing from
    other hosts. A page keeps a policy of its own, as those of `ravi/` have."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.get("Content-Type", "").startswith("text/html"):
            response["Cache-Control"] = "private, no-store"
            response.headers.setdefault("Content-Security-Policy", POLICY)
        return response


WORKER = os.environ.get("DEMO_WORKER", "")  # the worker's pid file, of `make demo`


def tour(request: HttpRequest) -> dict[str, Any]:
    """For templates: whether the user may kill the demo's worker."""
    user = getattr(request, "user", AnonymousUser())  # none on the page of an early error
    return {"may_kill_worker": bool(WORKER) and (user.is_staff or user.get_username() == "demo")}


class KillWorkerView(UserPassesTestMixin, View):
    """SIGKILL to the demo's worker. `make demo` starts another one, which continues its runs."""

    raise_exception = True

    def test_func(self) -> bool:
        return tour(self.request)["may_kill_worker"]

    def post(self, request: HttpRequest) -> HttpResponse:
        response = HttpResponse(status=204)  # without the tour's script the browser stays on the page
        try:
            noted = json.loads(Path(WORKER).read_text())
            if abs(psutil.Process(noted["pid"]).create_time() - noted["created"]) < 2.0:  # a pid is reused
                os.killpg(noted["pid"], signal.SIGKILL)
                response["X-Worker"] = noted["pid"]
        except (OSError, ValueError, psutil.Error):
            pass  # it is dead already
        return response
