"""A request to people as every surface shows it: REST, sockets, SSE, the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ravi_django.models import HumanRequest

ASKED = ("request", "request.closed")  # frames about a request


def request_shown(request: HumanRequest) -> dict[str, Any]:
    """The fields that are the same for every reader; the surfaces add run, root and agent."""
    about = request.about
    is_answered = request.status == HumanRequest.Status.ANSWERED
    return {
        "id": str(request.id),
        "kind": str(request.kind),
        "status": str(request.status),
        "text": request.text,
        "choices": request.choices,
        "tool": request.tool,
        "arguments": None if request.kind == HumanRequest.Kind.QUESTION else request.arguments,
        "risk": str(request.risk),
        "context": str(about.get("context", "")),
        "free_text": bool(about.get("free_text", True)),
        "questions": about.get("questions"),
        "to": request.to,
        "created_at": in_utc(request.created_at),
        "expires_at": in_utc(request.expires_at),
        "answered_by": name_of(request),
        "answered_at": in_utc(request.answered_at) if is_answered else None,
        "version": request.version,
        **({"hidden": True} if about.get("hidden") is True else {}),
    }


def name_of(request: HumanRequest) -> str | None:
    """The name of the person who answered. It stays when the user is deleted. None: nobody, or the site's operator."""
    if request.answered_by is not None:
        return str(request.answered_by.get_username())
    return (request.answer or {}).get("by") or None if isinstance(request.answer, dict) else None


def nameless(request: dict[str, Any]) -> dict[str, Any]:
    """As frames store it: readers take the approvers and the answerer from the request's row, where a name can be
    erased."""
    return {name: value for name, value in request.items() if name not in ("to", "answered_by")}


def named(frames: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Frames of a stream with the present approvers and the answerer of each request."""
    ids = {frame["id"] for frame in frames if frame["type"] in ASKED}
    rows = HumanRequest.objects.select_related("answered_by").filter(id__in=ids) if ids else ()
    found = {str(row.id): row for row in rows}
    return [_named(frame, found.get(frame["id"])) if frame["type"] in ASKED else frame for frame in frames]


def _named(frame: dict[str, Any], request: HumanRequest | None) -> dict[str, Any]:
    if frame["type"] == "request":
        return {**frame, "to": request.to if request else "", "answered_by": None}
    return {**frame, "answered_by": name_of(request) if request and frame["status"] == "answered" else None}


def in_utc(moment: datetime | None) -> str | None:
    """ISO 8601 with a Z."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
