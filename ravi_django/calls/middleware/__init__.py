"""The chain of middlewares around agents, models and tools (`chain.py`), and those that need the site's database."""

from ravi_django.calls.middleware.audit_log import AuditLog
from ravi_django.calls.middleware.rate_limit import UserRateLimit
from ravi_django.calls.middleware.response_cache import ResponseCache

__all__ = ["AuditLog", "ResponseCache", "UserRateLimit"]
