"""The instructions of an agent that is a row: a template, and the values that a run brings for its variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.utils import timezone

from ravi_django.agents.spec import AgentSpec
from ravi_django.kernel import AgentId, InvalidInputError
from ravi_django.runtime.addresses import name_of
from ravi_django.runtime.prompts import PromptTemplate
from ravi_django.runtime.state import RunState

FIELD = "metadata.variables"
_MARKS = ("{{", "{%", "{#")


def instructions_of(address: str, spec: AgentSpec) -> Any:
    """The text, or what renders it for a run. Raises InvalidInputError for a template that is none."""
    declared = {name: variable.model_dump(exclude_unset=True) for name, variable in spec.variables.items()}
    template = PromptTemplate(spec.system_instructions, declared)
    if not any(mark in spec.system_instructions for mark in _MARKS):
        return spec.system_instructions
    return RenderedInstructions(template, {"name": spec.name or AgentId.parse(address).key, "address": address})


class RenderedInstructions:
    """`(ctx) -> text`: with the variables of the run's metadata, and the template's own facts of the run."""

    def __init__(self, template: PromptTemplate, agent: Mapping[str, str]) -> None:
        self.template, self.agent = template, dict(agent)

    async def __call__(self, ctx: RunState) -> str:
        run = ctx.effects.lease.run
        user: dict[str, str] = {}
        if "user" in self.template.used and run.owner_id is not None:
            user = await ctx.effects.database.call(_facts_of, run.owner_id)
        return self.template.render(
            variables_of(run.metadata),
            agent=self.agent,
            user=user,
            today="" if run.started_at is None else timezone.localdate(run.started_at).isoformat(),
            session=ctx.session_id,
        )


def variables_of(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a run's metadata says of the template's variables."""
    found = (metadata or {}).get("variables")
    return dict(found) if isinstance(found, Mapping) else {}


def check_variables(declared: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Raises InvalidInputError with field `metadata.variables.<name>` for a value that is missing or not declared."""
    given = metadata.get("variables")
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInputError(f"{FIELD} must be an object of names and values", field=FIELD)
    for name in given or {}:
        if name not in declared:
            raise InvalidInputError(
                f"{FIELD}.{name} is no variable of this agent; it has {', '.join(declared) or 'none'}",
                field=f"{FIELD}.{name}",
            )
    for name, variable in declared.items():
        missing = (given or {}).get(name) is None and variable.get("default") is None
        if variable.get("required") and missing:
            words = variable.get("description")
            raise InvalidInputError(
                f"{FIELD}.{name} is required{f': {words}' if words else ''}; give it a value", field=f"{FIELD}.{name}"
            )


def facts_of(user: Any) -> dict[str, str]:
    """What instructions may say about a user."""
    return {"id": str(user.pk), "username": user.get_username(), "full_name": name_of(user, "full")}


def _facts_of(user_id: Any) -> dict[str, str]:
    user = get_user_model()._default_manager.filter(pk=user_id).first()
    if user is None:
        return {}
    return facts_of(user)
