"""Requests to people: questions, approvals, who may answer, answers, escalation and mail.

Guide: docs/howto/approvals.md.

A site answers, cancels and reassigns requests, and revokes sticky decisions, with the names in `__all__`.

Owns HumanRequest, StickyDecision, Delegation and Feedback. It must survive two answers at once: one counts. Read
`requests.py` first.
"""

from typing import TYPE_CHECKING

from ravi_django.wing import public

_EXPORTS = {
    "people.answers": "answer cancel reassign",
    "people.sticky": "revoke",
}

__all__ = ["answer", "cancel", "reassign", "revoke"]

if TYPE_CHECKING:
    from ravi_django.people.answers import answer, cancel, reassign
    from ravi_django.people.sticky import revoke

__getattr__ = public(__name__, _EXPORTS)
