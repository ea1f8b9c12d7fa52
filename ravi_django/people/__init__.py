"""Requests to people: questions, approvals, who may answer, answers, escalation and mail. Guide: docs/approvals.md.

A site answers, cancels and reassigns requests, and revokes sticky decisions, with the names in `__all__`.

Owns HumanRequest, StickyDecision and Delegation. It must survive two answers at once: one counts. Read
`requests.py` first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "answer": "ravi_django.people.answers",
    "cancel": "ravi_django.people.answers",
    "reassign": "ravi_django.people.answers",
    "revoke": "ravi_django.people.sticky",
}

__all__ = ["answer", "cancel", "reassign", "revoke"]

if TYPE_CHECKING:
    from ravi_django.people.answers import answer, cancel, reassign
    from ravi_django.people.sticky import revoke


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
