"""A call that is to be approved: what its asker may give, and what a person is shown of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from ravi_django.agents.schema_check import check_schema
from ravi_django.kernel import Addressees, InvalidInputError, Risk
from ravi_django.kernel.tools import MAX_ARGUMENTS_DEPTH, is_too_deep
from ravi_django.models import HumanRequest
from ravi_django.runtime import requests
from ravi_django.runtime.entries import as_recorded, storable
from ravi_django.runtime.hidden import MARK
from ravi_django.runtime.state import RunState

log = logging.getLogger("ravi.approvals")

MAX_SCHEMA = 20_000  # bytes; one that is larger is left to the tool to check
MAX_DESCRIPTION = 2000  # characters
MAX_SHOWN = 10  # arguments in the request's sentence
MAX_VALUE = 80  # characters of each


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be decided on, and of whom."""

    tool: str
    arguments: dict[str, Any]
    risk: Risk
    to: Addressees | None  # None: whom the site names
    call_id: str
    schema: dict[str, Any] | None
    description: str
    expires_at: datetime | None
    hidden: bool  # from the owner of the run

    @property
    def request(self) -> dict[str, Any]:
        """For the rows: a replay has to ask for the same."""
        return {"arguments": self.arguments, "risk": self.risk.value, **({MARK: True} if self.hidden else {})}


def checked(
    tool: Any,
    arguments: Any,
    *,
    risk: Any,
    to: Any,
    call_id: str,
    schema: Any,
    description: Any,
    expires_at: datetime | None,
    hidden: bool = False,
) -> Asked:
    """Raises InvalidInputError that names the parameter."""
    if not isinstance(tool, str) or not tool.strip():
        raise InvalidInputError(f"tool is the name of what is to be done, not {tool!r}", field="tool")
    if not isinstance(arguments, dict):
        raise InvalidInputError(
            f"arguments is an object of the tool's parameters, not {arguments!r}", field="arguments"
        )
    if is_too_deep(arguments):
        words = f"the arguments are nested more than {MAX_ARGUMENTS_DEPTH} levels deep"
        raise InvalidInputError(words, field="arguments")
    try:
        level = Risk(risk)
    except ValueError:
        words = f"risk is one of {', '.join(one.value for one in Risk)}, not {risk!r}"
        raise InvalidInputError(words, field="risk") from None
    if description is not None and not isinstance(description, str):
        raise InvalidInputError(f"description is a text, not {description!r}", field="description")
    name = str(storable(tool))[:200]
    return Asked(
        tool=name,
        arguments=as_recorded(name, arguments),
        risk=level,
        to=None if to is None else Addressees.of(to),
        call_id=call_id,
        schema=_checked_schema(schema),
        description=description or "",
        expires_at=expires_at,
        hidden=hidden,
    )


def _checked_schema(schema: Any) -> dict[str, Any] | None:
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise InvalidInputError(f"schema is the JSON schema of the arguments, not {schema!r}", field="schema")
    try:
        to_json(schema)
    except ValueError as error:
        raise InvalidInputError(f"schema is not JSON: {error}", field="schema") from None
    return schema


def request_for(ctx: RunState, path: str, asked: Asked, to: Addressees) -> HumanRequest:
    """Not saved yet."""
    details: dict[str, Any] = {"call_id": asked.call_id, "description": asked.description[:MAX_DESCRIPTION]}
    if asked.schema is not None and _may_be_shown(asked):
        details["schema"] = asked.schema
    return requests.new(
        ctx.effects.lease.run,
        path,
        HumanRequest.Kind.APPROVAL,
        present=ctx.effects.present(),
        to=to,
        text=_sentence(str(ctx.agent_id), asked),
        tool=asked.tool,
        arguments=asked.arguments,
        risk=asked.risk.value,
        details=storable(details),
        expires_at=asked.expires_at,
        hidden=asked.hidden,
    )


def _may_be_shown(asked: Asked) -> bool:
    """Whether a person's arguments can be checked against the schema. One that is too large, or none, is left to the
    tool itself."""
    if len(to_json(asked.schema)) > MAX_SCHEMA:
        return False
    try:
        check_schema(asked.schema or {})
    except InvalidInputError as error:
        words = "approvals: the schema of %s is left out of the request: %s"
        log.warning(words, asked.tool, error, extra={"action": "approval.schema_dropped"})
        return False
    return True


def _sentence(agent: str, asked: Asked) -> str:
    shown = [f"{name}={_short(value)}" for name, value in list(asked.arguments.items())[:MAX_SHOWN]]
    if len(asked.arguments) > MAX_SHOWN:
        shown.append(f"{len(asked.arguments) - MAX_SHOWN} more")
    how = f" with {', '.join(shown)}" if shown else ""
    return f"May {agent} call {asked.tool}{how}? It is of {asked.risk.value} risk."


def _short(value: Any) -> str:
    text = " ".join(to_json(value).decode().split())
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"
