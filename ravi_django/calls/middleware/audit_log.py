"""AuditLog: records of runs, model calls and tool calls by user, in rows that outlive the journal."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable
from typing import Any, cast

from ravi_django.calls.llm.errors import error_text
from ravi_django.engine.journal.outbox import write_audit
from ravi_django.engine.lease import backoff
from ravi_django.engine.lease.lease_state import ToolPaused
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel.errors import (
    CancellationError,
    GuardrailError,
    LeaseLostError,
    MiddlewareTermination,
    ModelError,
    PermanentError,
    RateLimitedError,
    TransientError,
)
from ravi_django.kernel.json_values import canonical_json, storable
from ravi_django.kernel.middleware import (
    AgentMiddleware,
    AgentRunContext,
    CallNext,
    ChatContext,
    ChatMiddleware,
    FunctionContext,
    FunctionMiddleware,
)
from ravi_django.kernel.secrets import is_secret
from ravi_django.kernel.tools import Effect
from ravi_django.models import AuditRecord

log = logging.getLogger("ravi.audit")

MAX_ARGUMENTS = 4096  # characters of the arguments' JSON
MAX_WORDS = 500  # of an error
HIDDEN = "[redacted]"
_SECRET = re.compile(
    r"passw|passphrase|pwd|secret|token(?!s)|api.?key|authori[sz]ation|credential|cookie|private.?key", re.I
)
_REFUSALS = (GuardrailError, RateLimitedError, MiddlewareTermination)
_NOT_OVER = (LeaseLostError, CancellationError)  # the end of the lease: the call has no outcome


class AuditLog:
    """Write an AuditRecord for every run, model call and tool call of the agent, and a line to the logger `ravi.audit`.

    arguments: keep tools' arguments too, with the values of fields such as password, token, secret, api_key or
    authorization hidden, and cut at 4096 characters. Their SHA-256 (of the canonical JSON, after hiding) is always
    kept. redact: more names of fields to hide. required: refuse a call whose "attempted" record, written before it,
    fails. By default a failing write is logged.

    Records: `run` "started" before the agent's code, and "ended" after it; `model` and `tool` with an `outcome`: ok;
    error; refused (by a guardrail, or another middleware); middleware (answered in its place: a cache). At-most-once
    and transactional tools have an "attempted" record before them as well.

    Each record is written once, before the journal's own row, so the log has all that the journal has. A crash between
    an outcome and the journal leaves the record of a call that the next worker makes again (one record of both), or
    that a person decides on. A crash during an at-most-once tool leaves "attempted" alone, and so does a call whose
    outcome a person decided. A call that is retried after a transient error has one outcome, the last. A person's retry
    of a run has records of its own. A run that is cancelled, or whose deadline passes, while it waits has "started"
    alone: its own row has its end. Results that an outer middleware changes are not seen: put the AuditLog first.
    """

    def __init__(self, *, arguments: bool = False, redact: Iterable[str] = (), required: bool = False) -> None:
        self.arguments, self.required = arguments, required
        self.redact = frozenset(name.lower() for name in ([redact] if isinstance(redact, str) else redact))
        self.middlewares = [_RunAudit(self), _ModelAudit(self), _ToolAudit(self)]

    async def attempted(self, ctx: Any, event: str, name: str, subject: str, detail: dict[str, Any]) -> None:
        """Before the call. Raises PermanentError when the log is required and cannot be written."""
        try:
            await self._write(ctx, event, name, f"{subject}.attempted", detail)
        except Exception as error:
            if self.required:
                raise PermanentError(f"not done: the audit log cannot be written: {error}") from error

    async def happened(self, ctx: Any, event: str, name: str, subject: str, detail: dict[str, Any]) -> None:
        """After the call: it cannot be undone, so a failure is logged."""
        try:
            await self._write(ctx, event, name, subject, detail)
        except Exception:
            log.debug("no record", exc_info=True)  # `_write` has logged it

    async def _write(self, ctx: RunState, event: str, name: str, subject: str, detail: dict[str, Any]) -> None:
        run = ctx.recorder.lease.run
        times = ctx.recorder.journal.retries  # by people: another try has records of its own
        named = f"{run.id}\0{run.generation}\0{event}\0{subject}" + (f"\0{times}" if times else "")
        key = hashlib.sha256(named.encode()).hexdigest()
        record = AuditRecord(
            key=key,
            owner_id=run.owner_id,
            tenant=run.tenant,
            event=event,
            name=storable(name)[:200],
            agent=str(ctx.agent_id),
            run_id=run.id,
            session_id=run.session_id,
            detail=storable(detail),
        )
        extra = {"action": f"audit.{event}", "run": str(run.id), "owner": run.owner_id, "detail": detail}
        log.info("%s %s %s: %s", event, record.name, run.id, detail.get("outcome", "attempted"), extra=extra)
        try:
            await ctx.recorder.database.call(write_audit, record)
        except Exception:
            log.exception("run %s: no audit record of %s %s", run.id, event, name, extra={"action": "audit.failed"})
            raise

    def of_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The part of a record about a call's arguments: their digest, or with `arguments=True` themselves."""
        hidden = self._hidden(arguments)
        body = canonical_json(hidden)
        detail: dict[str, Any] = {"arguments_sha256": hashlib.sha256(body).hexdigest()}
        if self.arguments:
            text = body.decode(errors="replace")
            detail["arguments"] = json.loads(text) if len(text) <= MAX_ARGUMENTS else {"cut": text[:MAX_ARGUMENTS]}
        return detail

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: HIDDEN if self._is_secret(str(name)) else self._hidden(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return value

    def _is_secret(self, name: str) -> bool:
        return name.lower() in self.redact or is_secret(name) or _SECRET.search(name) is not None


class _Part:
    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit


class _RunAudit(_Part, AgentMiddleware):
    async def process(self, context: AgentRunContext, call_next: CallNext) -> None:
        ctx, name = context.ctx, str(context.agent_id)
        subject = context.inbox[0].id if context.inbox else ""  # a run with more messages is handled again
        begun = time.monotonic()
        started = {"step": "started", "messages": len(context.inbox)}
        await self._audit.attempted(ctx, "run", name, subject, started)
        try:
            await call_next()
        except asyncio.CancelledError:
            token = ctx.meta.cancellation
            if token.cancelled:
                await self._ended(ctx, name, subject, begun, {"outcome": "cancelled", "error": str(token.reason)})
            raise
        except LeaseLostError:
            raise
        except CancellationError as error:
            await self._ended(ctx, name, subject, begun, {"outcome": "cancelled", "error": str(error)})
            raise
        except Exception as error:
            await self._ended(ctx, name, subject, begun, _failed(error))
            raise
        await self._ended(ctx, name, subject, begun, {"outcome": "ok"})

    async def _ended(self, ctx: Any, name: str, subject: str, begun: float, detail: dict[str, Any]) -> None:
        await self._audit.happened(ctx, "run", name, subject, {"step": "ended", **detail, **_lasted(begun)})


class _ModelAudit(_Part, ChatMiddleware):
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        audit, ctx, name, begun = self._audit, context.ctx, context.model.name, time.monotonic()
        detail: dict[str, Any] = {"path": context.path, "messages": len(context.messages)}
        if audit.required:
            await audit.attempted(ctx, "model", name, context.path, detail)
        try:
            await call_next()
        except _NOT_OVER:
            raise
        except Exception as error:
            if not _is_tried_again(context, error):
                detail |= {**_failed(error), **_lasted(begun)}
                await audit.happened(ctx, "model", name, context.path, detail)
            raise
        detail |= {"outcome": "ok" if context.made else "middleware", **_lasted(begun)}
        if (response := context.response) is not None:
            detail["model"] = response.model or name
            detail["cost"] = response.cost
            detail |= {"input_tokens": response.usage.input_tokens, "output_tokens": response.usage.output_tokens}
        await audit.happened(ctx, "model", name, context.path, detail)


def _is_tried_again(context: ChatContext, error: Exception) -> bool:
    if not isinstance(error, TransientError | ModelError):
        return False
    failures = cast("RunState", context.ctx).recorder.state.attempts
    return backoff.again(error, backoff.policy_of(context.model), failures) is not None


class _ToolAudit(_Part, FunctionMiddleware):
    async def process(self, context: FunctionContext, call_next: CallNext) -> None:
        audit, ctx, name, begun = self._audit, context.ctx, context.tool.name, time.monotonic()
        subject = f"{context.path}#{context.attempt}"
        detail: dict[str, Any] = {"path": context.path, "risk": str(context.risk)}
        detail |= audit.of_arguments(context.arguments)
        effect = context.tool.promised_effect
        if audit.required or effect is not Effect.IDEMPOTENT:
            await audit.attempted(ctx, "tool", name, subject, detail)
        try:
            await call_next()
        except (*_NOT_OVER, TransientError):
            raise
        except ToolPaused:  # the next attempt has a record of its own
            detail["outcome"] = "paused"
            raise
        except Exception as error:
            detail |= _failed(error)
            raise
        else:
            failed = context.result is not None and context.result.is_error
            answered = "ok" if context.made else "middleware"
            detail["outcome"] = answered if not failed else "error" if context.made else "refused"
            if failed and context.result is not None:
                detail["error"] = context.result.text[:MAX_WORDS]
        finally:
            if "outcome" in detail:
                detail |= _lasted(begun)
                await audit.happened(ctx, "tool", name, subject, detail)


def _failed(error: Exception) -> dict[str, Any]:
    outcome = "refused" if isinstance(error, _REFUSALS) else "error"
    return {"outcome": outcome, "error": error_text(error)[:MAX_WORDS]}


def _lasted(begun: float) -> dict[str, Any]:
    return {"duration_s": round(time.monotonic() - begun, 3)}
