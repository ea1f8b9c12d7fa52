"""`PromptTemplate`: instructions as a Django template with declared variables, and the values that a run brings for
them."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.template import TemplateSyntaxError
from django.utils import timezone
from django.utils.translation import gettext_noop as _

from ravi_django.agents.spec.spec import AgentSpec
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import AgentId, InvalidInputError
from ravi_django.kernel.json_values import parsed
from ravi_django.runs.catalog.prompt_engine import RenderError, SealedTemplate
from ravi_django.users import name_of

FIELD = "system_instructions"
MAX_TEXT = 100_000  # characters of a template, and of what it renders to
MAX_VALUES = 256 * 1024  # characters of all values as JSON
BUILT_IN = {
    "agent": _("name and address of the agent"),
    "user": _("id, username and full_name of the run's owner"),
    "today": _("the day on which the run began, like 2030-12-31"),
    "session": _("id of the conversation"),
}
_DECLARATION = {"description", "default", "required"}
_RESERVED = {"forloop", "block", *BUILT_IN}


class PromptTemplate:
    """Instructions with variables. Safe for texts of people who may not read the site's settings.

    text: Django's template language, without access to files, the clock or Python objects; at most 100 000 characters.
    declared: {name: {"description": str, "default": JSON, "required": bool}}, each key optional. An optional variable
    without a value and a default is "".

    Always available: `agent` (name, address), `user` (id, username, full_name), `today` (2030-12-31), `session`.

    Raises InvalidInputError with field "system_instructions" (a syntax error, with the line; an undeclared name) or
    "variables.<name>" (an invalid declaration).
    """

    def __init__(self, text: str, declared: Mapping[str, Any] | None = None) -> None:
        self.text = text
        self.declared = _check_declared(declared)
        if not isinstance(text, str):
            raise InvalidInputError(f"{FIELD} must be text", field=FIELD)
        if len(text) > MAX_TEXT:
            raise InvalidInputError(f"{FIELD} has {len(text):,} characters; at most {MAX_TEXT:,}", field=FIELD)
        self._template = _parse(text)
        self.used = frozenset(self._template.used)
        for name, line in self._template.used.items():
            if name not in self.declared and name not in BUILT_IN:
                raise InvalidInputError(
                    f"{FIELD}, line {line}: {name!r} is not declared; add it to the variables, or use one of "
                    f"{', '.join([*self.declared, *BUILT_IN])}",
                    field=FIELD,
                )

    def render(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        agent: Mapping[str, str] | None = None,
        user: Mapping[str, str] | None = None,
        today: str = "",
        session: str = "",
    ) -> str:
        """The instructions with these values: the same text for the same arguments, whatever the clock or the locale.

        Raises InvalidInputError with field "variables.<name>" for a value that is missing, undeclared or not JSON, and
        "system_instructions" if the values do not fit the text, or give more than 100 000 characters.
        """
        variables = self._fill(values or {})
        facts = {
            "agent": {"name": "", "address": "", **(agent or {})},
            "user": {"id": "", "username": "", "full_name": "", **(user or {})},
            "today": today,
            "session": session,
        }
        try:
            rendered = self._template.render({**variables, **facts})
        except RenderError as error:
            field = f"variables.{error.name}" if error.name in self.declared else FIELD
            raise InvalidInputError(f"{FIELD}{_at(error)}: {error}", field=field) from error
        except Exception as error:  # of a filter, on a value that it does not support
            raise InvalidInputError(f"{FIELD}{_at(error)}: {error}", field=FIELD) from error
        if len(rendered) > MAX_TEXT:
            raise InvalidInputError(
                f"{FIELD} come to {len(rendered):,} characters with these values; at most {MAX_TEXT:,}", field=FIELD
            )
        return rendered

    def _fill(self, values: Mapping[str, Any]) -> dict[str, Any]:
        for name in values:
            if name not in self.declared:
                message = f"variables.{name} is not declared by this agent; it has {', '.join(self.declared) or 'none'}"
                raise InvalidInputError(message, field=f"variables.{name}")
        filled = {}
        for name, declaration in self.declared.items():
            value = values.get(name)
            if value is None and declaration.get("required") and declaration.get("default") is None:
                raise InvalidInputError(f"variables.{name} is required; give it a value", field=f"variables.{name}")
            filled[name] = _json(name, declaration.get("default") if value is None else value)
        size = sum(len(json.dumps(value)) for value in filled.values())
        if size > MAX_VALUES:
            raise InvalidInputError(
                f"the variables have {size:,} characters; at most {MAX_VALUES:,}", field="variables"
            )
        return filled


def _parse(text: str) -> SealedTemplate:
    try:
        return SealedTemplate(text)
    except RecursionError:
        raise InvalidInputError(f"{FIELD} nest tags too deeply", field=FIELD) from None
    except Exception as error:  # tags raise more than syntax errors
        token = getattr(error, "token", None)
        line = f", line {token.lineno}" if token is not None else ""
        reason = str(error) if isinstance(error, TemplateSyntaxError) else f"{type(error).__name__}: {error}"
        raise InvalidInputError(f"{FIELD}{line}: {reason}", field=FIELD) from error


def _at(error: Exception) -> str:
    line = getattr(error, "line", None)
    return f", line {line}" if line else ""


def _check_declared(declared: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    if not isinstance(declared or {}, Mapping):
        raise InvalidInputError('variables must be an object, as {"name": {"default": "…"}}', field="variables")
    checked = {}
    for name, declaration in (declared or {}).items():
        field = f"variables.{name}"
        if not _is_name(name):
            raise InvalidInputError(
                f"{field} is no name for a variable: letters, digits and _, beginning with a letter", field=field
            )
        if name in _RESERVED:
            raise InvalidInputError(f"{field} is taken: {name!r} has a meaning of its own; rename it", field=field)
        checked[name] = _check_declaration(field, name, declaration)
    return checked


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and name[0] != "_" and not keyword.iskeyword(name)


def _check_declaration(field: str, name: str, declaration: Any) -> dict[str, Any]:
    if not isinstance(declaration, Mapping) or not set(declaration) <= _DECLARATION:
        raise InvalidInputError(f"{field} must be an object of {', '.join(sorted(_DECLARATION))}", field=field)
    if not isinstance(declaration.get("description", ""), str):
        raise InvalidInputError(f"{field}.description must be text", field=f"{field}.description")
    if not isinstance(declaration.get("required", False), bool):
        raise InvalidInputError(f"{field}.required must be true or false", field=f"{field}.required")
    if declaration.get("default") is not None:
        _json(name, declaration["default"], f"{field}.default")
    return dict(declaration)


def _json(name: str, value: Any, field: str = "") -> Any:
    """A copy as plain JSON."""
    field = field or f"variables.{name}"
    if value is None:
        return ""
    try:
        return parsed(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{field}: {error}; use text, numbers, true, false, lists and objects"
        raise InvalidInputError(message, field=field) from error


VALUES_FIELD = "metadata.variables"
_MARKS = ("{{", "{%", "{#")


def instructions_of(address: str, spec: AgentSpec) -> Any:
    """The text, or a callable that renders it for a run. Raises InvalidInputError for an invalid template."""
    declared = {name: variable.model_dump(exclude_unset=True) for name, variable in spec.variables.items()}
    template = PromptTemplate(spec.system_instructions, declared)
    if not any(mark in spec.system_instructions for mark in _MARKS):
        return spec.system_instructions
    return RenderedInstructions(template, {"name": spec.name or AgentId.parse(address).key, "address": address})


class RenderedInstructions:
    """`(ctx) -> text`: with the variables of the run's metadata, and facts of the run."""

    def __init__(self, template: PromptTemplate, agent: Mapping[str, str]) -> None:
        self.template, self.agent = template, dict(agent)

    async def __call__(self, ctx: RunState) -> str:
        run = ctx.recorder.lease.run
        user: dict[str, str] = {}
        if "user" in self.template.used and run.owner_id is not None:
            user = await ctx.recorder.database.call(_facts_of, run.owner_id)
        return self.template.render(
            variables_of(run.metadata),
            agent=self.agent,
            user=user,
            today="" if run.started_at is None else timezone.localdate(run.started_at).isoformat(),
            session=ctx.session_id,
        )


def variables_of(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The values of the template's variables in a run's metadata."""
    values = (metadata or {}).get("variables")
    return dict(values) if isinstance(values, Mapping) else {}


def check_variables(declared: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Raises InvalidInputError with field `metadata.variables.<name>` for a value that is missing or not declared."""
    values = metadata.get("variables")
    if values is not None and not isinstance(values, Mapping):
        raise InvalidInputError(f"{VALUES_FIELD} must be an object of names and values", field=VALUES_FIELD)
    for name in values or {}:
        if name not in declared:
            message = f"{VALUES_FIELD}.{name} is no variable of this agent; it has {', '.join(declared) or 'none'}"
            raise InvalidInputError(message, field=f"{VALUES_FIELD}.{name}")
    for name, variable in declared.items():
        missing = (values or {}).get(name) is None and variable.get("default") is None
        if variable.get("required") and missing:
            field, purpose = f"{VALUES_FIELD}.{name}", variable.get("description")
            message = f"{field} is required{f': {purpose}' if purpose else ''}; give it a value"
            raise InvalidInputError(message, field=field)


def facts_of(user: Any) -> dict[str, str]:
    """The facts about a user that instructions may use."""
    return {"id": str(user.pk), "username": user.get_username(), "full_name": name_of(user, "full")}


def _facts_of(user_id: Any) -> dict[str, str]:
    user = get_user_model()._default_manager.filter(pk=user_id).first()
    return {} if user is None else facts_of(user)
