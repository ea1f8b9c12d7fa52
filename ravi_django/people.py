"""Answer, cancel and reassign requests to people, and revoke sticky decisions. Guide: docs/approvals.md."""

from ravi_django.runtime.people.answers import answer, cancel, reassign
from ravi_django.runtime.people.sticky import revoke

__all__ = ["answer", "cancel", "reassign", "revoke"]
