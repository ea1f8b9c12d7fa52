"""Health: whether a run that is submitted now will start."""

from __future__ import annotations

import threading
import time
from typing import Any

from rest_framework.permissions import AllowAny
from rest_framework.response import Response

from ravi_django.api.base import ApiView, non_atomic
from ravi_django.api.openapi import documented
from ravi_django.runtime.engine.health import Check, check_all
from ravi_django.services import shapes

FRESH_S = 1.0  # anonymous clients may ask, and each answer opens several connections

_lock = threading.Lock()
_last: tuple[float, list[Check]] = (float("-inf"), [])


@non_atomic  # a transaction would fail without a database
class HealthView(ApiView):
    permission_classes = [AllowAny]
    throttle_classes = []  # a load balancer asks often

    def perform_authentication(self, request: Any) -> None:
        """Done in `_is_staff`: it may need the database, which may be down."""

    @documented("health", ok={200: shapes.HealthSerializer, 503: shapes.HealthSerializer}, anonymous=True)
    def get(self, request: Any) -> Response:
        """Whether all services that runs need are available; anonymous. Staff see each check."""
        checks = _checks()
        healthy = all(check.ok for check in checks)
        body: dict[str, Any] = {"status": "ok" if healthy else "unavailable"}
        if _is_staff(request):
            body["checks"] = {check.name: check for check in checks}
        return Response(shapes.HealthSerializer(body).data, status=200 if healthy else 503)


def _checks() -> list[Check]:
    """At most FRESH_S old; of concurrent calls only one runs the checks."""
    global _last
    with _lock:
        at, checks = _last
        if time.monotonic() - at > FRESH_S:
            checks = check_all()
            _last = (time.monotonic(), checks)
    return checks


def _is_staff(request: Any) -> bool:
    """False if authentication fails: health answers all the same."""
    try:
        return bool(request.user.is_active and request.user.is_staff)
    except Exception:
        return False
