"""What the shipped middlewares keep from the model, from other users, and from happening."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, UNIT, Mutant

_GUARDS = "ravi_django/agents/guards/"
_SHIPPED = RUNTIME + "middleware/"

MIDDLEWARE = [
    Mutant(
        "redaction: text documents are text",
        _GUARDS + "texts.py",
        '        changes["data"] = _document(block, change)\n',
        "        pass\n",
        (UNIT + "test_pii_redaction.py",),
    ),
    Mutant(
        "redaction: a placeholder may be split",
        _GUARDS + "pii.py",
        "        context.stream = False\n",
        "",
        (UNIT + "test_pii_redaction.py",),
    ),
    Mutant(
        "redaction: a text's own brackets",
        _GUARDS + "pii.py",
        "            if name in self.taken:\n",
        "            if False:\n",
        (UNIT + "test_pii_redaction.py",),
    ),
    Mutant(
        "cache: a user's own answers",
        _SHIPPED + "response_cache.py",
        '"user": [ctx.tenant_id, ctx.user_id]',
        '"user": [ctx.tenant_id]',
        (UNIT + "test_response_cache.py",),
    ),
    Mutant(
        "cache: whole answers alone",
        _SHIPPED + "response_cache.py",
        "    return response.finish_reason in _COMPLETE and bool(response.content)\n",
        "    return True\n",
        (UNIT + "test_response_cache.py",),
    ),
    Mutant(
        "rate limit: runs before this one",
        _SHIPPED + "rate_limit.py",
        "id__lt=run.id, ",
        "",
        (UNIT + "test_rate_limit.py",),
    ),
    Mutant(
        "rate limit: of this user",
        _SHIPPED + "rate_limit.py",
        "            rows = rows.filter(owner_id=run.owner_id)\n",
        "            pass\n",
        (UNIT + "test_rate_limit.py",),
    ),
    Mutant(
        "rate limit: the decision is recorded",
        _SHIPPED + "rate_limit.py",
        "decision = await ctx.pin(name, decide)",
        "decision = await decide()",
        (UNIT + "test_rate_limit.py",),
    ),
    Mutant(
        "rate limit: a fork counts for itself",
        _SHIPPED + "rate_limit.py",
        'name = f"{self.name}.{run.id}"',
        "name = self.name",
        (UNIT + "test_rate_limit.py",),
    ),
    Mutant(
        "audit: each try of a run",
        _SHIPPED + "audit_log.py",
        'if times else "")',
        'if False else "")',
        (UNIT + "test_audit_log.py",),
    ),
    Mutant(
        "model: an answer that came to nothing was paid",
        RUNTIME + "llm_calls.py",
        "effects.note_once(Entry(PAID",
        "repr(Entry(PAID",
        (UNIT + "test_middleware.py",),
    ),
    Mutant(
        "transactional: behind its commit the chain alone runs again",
        RUNTIME + "tool_calls.py",
        "    if begun is not None and begun.result is not None:",
        "    if False:",
        (UNIT + "test_middleware.py",),
    ),
    Mutant(
        "audit: one record of a thing",
        RUNTIME + "store/audit.py",
        "ignore_conflicts=True",
        "ignore_conflicts=False",
        (UNIT + "test_audit_log.py",),
    ),
    Mutant(
        "audit: no call before its record",
        _SHIPPED + "audit_log.py",
        "            if self.required:\n",
        "            if False:\n",
        (UNIT + "test_audit_log.py",),
    ),
    Mutant(
        "guardrail: a check that raises trips",
        _GUARDS + "verdict.py",
        '        raise CheckFailed(f"the check failed: {type(error).__name__}: {error}"[:MAX_REASON]) from error\n',
        "        return None\n",
        (UNIT + "test_guardrails.py",),
    ),
    Mutant(
        "guardrail: a failed call is recorded as such",
        RUNTIME + "interceptors.py",
        "        entry.error = _refusal(",
        "        _refusal(",
        (UNIT + "test_guardrails.py",),
    ),
    Mutant(
        "guardrail: a retry does not do it again",
        RUNTIME + "store/retry.py",
        '    if error and error.get("happened"):',
        "    if False:",
        (UNIT + "test_guardrails.py",),
    ),
    Mutant(
        "guardrail: a replay is refused as well",
        RUNTIME + "tool_calls.py",
        "        interceptors.raise_refused(row.error)\n",
        "",
        (UNIT + "test_guardrails.py",),
    ),
]
