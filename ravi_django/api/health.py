"""Health: whether runs that are submitted now will be driven."""

from __future__ import annotations

import threading
import time
from typing import Any

from rest_framework import status
from rest_framework.permissions import AllowAny
from rest_framework.response import Response

from ravi_django.api.base import ApiView, non_atomic
from ravi_django.api.openapi import documented
from ravi_django.runtime.engine.health import Check, check_all
from ravi_django.services import shapes

FRESH_S = 1.0  # anybody may ask, and an answer costs a handful of connections

_lock = threading.Lock()
_last: tuple[float, list[Check]] = (float("-inf"), [])


@non_atomic  # else a dead database fails it from outside
class HealthView(ApiView):
    permission_classes = [AllowAny]
    throttle_classes = []  # a load balancer asks often

    def perform_authentication(self, request: Any) -> None:
        """Later, and only for the details: it may need the very database that is down."""

    @documented("health", ok={200: shapes.HealthSerializer, 503: shapes.HealthSerializer}, anonymous=True)
    def get(self, request: Any) -> Response:
        """Whether all that runs need is there; anonymous. Staff see each check."""
        checks = _checks()
        healthy = all(check.ok for check in checks)
        body: dict[str, Any] = {"status": "ok" if healthy else "unavailable"}
        if _is_staff(request):
            body["checks"] = {check.name: check for check in checks}
        return Response(
            shapes.HealthSerializer(body).data,
            status=status.HTTP_200_OK if healthy else status.HTTP_503_SERVICE_UNAVAILABLE,
        )


def _checks() -> list[Check]:
    """Those of a moment ago will do; of many that ask at once, one looks."""
    global _last
    with _lock:
        at, checks = _last
        if time.monotonic() - at > FRESH_S:
            checks = check_all()
            _last = (time.monotonic(), checks)
    return checks


def _is_staff(request: Any) -> bool:
    """Whoever cannot be made out is nobody: health answers all the same."""
    try:
        return bool(request.user.is_active and request.user.is_staff)
    except Exception:
        return False
