"""The approvers of an agent's tool calls: the same for all tools, or by tool name, risk, or `*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ravi_django.kernel import Addressees, InvalidInputError, Risk, Tool
from ravi_django.kernel.checks import did_you_mean
from ravi_django.kernel.people import OWNER

REST = "*"
RISKS = frozenset(risk.value for risk in Risk)
POLICIES = ("by_risk", "always", "never")
VISIBLE = ("owner", "staff")


@dataclass(frozen=True, slots=True)
class Approvers:
    """`named` has addressees by tool name or risk. `rest` is for calls that neither `named` nor the tool covers."""

    named: dict[str, Addressees] = field(default_factory=dict)
    rest: Addressees | None = None
    of_row: bool = False  # of an agent in the database: its editor cannot weaken the rules in code

    @classmethod
    def of(cls, value: Any) -> Approvers:
        """From None, from what `Addressees.of` takes, or from a mapping of such by tool name, risk or "*".

        Raises InvalidInputError whose field is the place, as `approvers.pay`.
        """
        if value is None or isinstance(value, cls):
            return value or cls()
        if not isinstance(value, Mapping) or set(value) & {"to", "steps"}:
            return cls(rest=Addressees.of(value, "approvers"))
        if not value:
            raise InvalidInputError("approvers is empty; enter an address, or leave it out", field="approvers")
        by_key = {str(key): Addressees.of(to, f"approvers.{key}") for key, to in value.items()}
        return cls({key: to for key, to in by_key.items() if key != REST}, by_key.get(REST))

    def for_call(self, tool: Tool, risk: Risk) -> Addressees | None:
        """The approvers: the agent's for this tool or risk, else the tool's own, else the agent's `rest`; None: nobody.
        For an agent in the database the tool's own come first."""
        of_agent, of_tool = self.named.get(tool.name) or self.named.get(risk.value), approvers_of(tool)
        if self.of_row:
            return of_tool or _without_what_needs_code(of_agent or self.rest, risk)
        return of_agent or of_tool or self.rest

    def as_of_row(self) -> Approvers:
        return replace(self, of_row=True)

    def check(self, tools: Iterable[Tool]) -> None:
        """Raises InvalidInputError for a key that is none of these tools, and for a tool with an invalid policy."""
        all_tools = list(tools)
        for tool in all_tools:
            approvers_of(tool)
            checked_policy(tool.approval, tool.name)
        self.check_names(tool.name for tool in all_tools)

    def check_names(self, tools: Iterable[str]) -> None:
        """Raises InvalidInputError for a key that is none of these tools."""
        names = set(tools)
        for key in self.named:
            if key not in names and key not in RISKS:
                known, near = ", ".join(sorted(names)) or "none", did_you_mean(key, names)
                raise InvalidInputError(
                    f"approvers.{key}: not a risk, a tool of the agent or {REST!r}; the tools are: {known}{near}",
                    field=f"approvers.{key}",
                )

    def to_json(self) -> Any:
        """The shortest form that `of` reads; None for nobody."""
        rest = None if self.rest is None else self.rest.to_json()
        if not self.named:
            return rest
        named = {key: to.to_json() for key, to in self.named.items()}
        return named if rest is None else {**named, REST: rest}


def _without_what_needs_code(addressees: Addressees | None, risk: Risk) -> Addressees | None:
    """An agent in the database cannot turn four eyes off, or let a run's owner approve a risky call."""
    if addressees is None:
        return None
    steps = tuple(step for step in addressees.steps if risk is Risk.SAFE or step.to != OWNER)
    return Addressees(steps=steps, four_eyes=addressees.four_eyes or None) if steps else None


def approvers_of(tool: Tool) -> Addressees | None:
    """A tool's own approvers. Raises InvalidInputError that names the tool."""
    return None if tool.approvers is None else Addressees.of(tool.approvers, f"approvers of the tool {tool.name}")


def checked_policy(value: Any, name: str = "") -> str:
    """Raises InvalidInputError unless it is one of POLICIES."""
    if value not in POLICIES:
        subject = f"approval of the tool {name}" if name else "a tool's approval"
        raise InvalidInputError(f"{subject} must be one of {', '.join(POLICIES)}, not {value!r}", field="approval")
    return str(value)


def checked_visible(value: Any) -> str:
    """Raises InvalidInputError unless it is one of VISIBLE."""
    if value not in VISIBLE:
        raise InvalidInputError(f"a tool's visible must be 'owner' or 'staff', not {value!r}", field="visible")
    return str(value)


def refuse_owner(tool: Tool, to: Addressees | None) -> None:
    """Raises InvalidInputError if the run's owner would approve a call whose arguments are hidden from them."""
    if tool.visible == "staff" and to is not None and any(step.to == OWNER for step in to.steps):
        raise InvalidInputError(
            f'{tool.name}: visible="staff" hides the arguments from the owner of the run, who is an approver of its '
            'calls; name other approvers for it, e.g. "staff"',
            field="approvers",
        )
