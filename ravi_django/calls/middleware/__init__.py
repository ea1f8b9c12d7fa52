"""The chain of middlewares around agents, models and tools, and those that need the site's database.

Owns no table. It must survive a middleware that raises: the call then has that error. Read `chain.py` first.
"""

from ravi_django.calls.middleware.audit_log import AuditLog
from ravi_django.calls.middleware.rate_limit import UserRateLimit
from ravi_django.calls.middleware.response_cache import ResponseCache

__all__ = ["AuditLog", "ResponseCache", "UserRateLimit"]
