"""Middlewares that need the site: its cache, its runs, its audit log."""

from ravi_django.runtime.middleware.audit_log import AuditLog
from ravi_django.runtime.middleware.rate_limit import UserRateLimit
from ravi_django.runtime.middleware.response_cache import ResponseCache

__all__ = ["AuditLog", "ResponseCache", "UserRateLimit"]
