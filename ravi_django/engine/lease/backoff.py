"""Retries of failed calls, by the model's RetryPolicy or the site's settings."""

from __future__ import annotations

from typing import Any

from ravi_django.conf import conf
from ravi_django.kernel import ModelError, RetryPolicy, TransientError
from ravi_django.kernel.errors import message_of

MAX_PAUSE_S = 60.0  # between two calls


def site_policy() -> RetryPolicy:
    """The policy of tools, and of models without their own."""
    return RetryPolicy(max_attempts=max(1, int(conf.MAX_ATTEMPTS)), base_s=float(conf.RETRY_BASE_S), max_s=MAX_PAUSE_S)


def policy_of(model: Any) -> RetryPolicy:
    of_model: RetryPolicy | None = getattr(model, "retry", None)
    return site_policy() if of_model is None else of_model


def again(error: TransientError | ModelError, policy: RetryPolicy, failures: int) -> TransientError | None:
    """The error that has the run call again, after `failures` failures in a row before this one; None if this one is
    final."""
    if failures + 1 >= policy.max_attempts or not policy.retries(error):
        return None
    if isinstance(error, ModelError):
        error = TransientError(message_of(error), type=error.type, status=error.status)
    error.policy = policy
    return error


def delay_s(error: BaseException | None, failures: int) -> float:
    """Seconds until the call that failed with `error` is made again."""
    policy: RetryPolicy = getattr(error, "policy", None) or site_policy()
    return policy.delay_s(failures, getattr(error, "retry_after", None))
