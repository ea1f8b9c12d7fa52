"""People: the recipients of a request, their order, and their decision on a tool's call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ravi_django.kernel.errors import InvalidInputError

OWNER, STAFF = "owner", "staff"
NAMED = ("user", "group", "permission")  # user:NAME, group:NAME, permission:app.codename
MAX_ADDRESS = 220  # characters
MAX_STEPS = 10
MAX_WITHIN_S = 366 * 86400.0


class Step(BaseModel):
    """One address, and the time until the next step is asked instead."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: str
    within: float | None = Field(default=None, gt=0, le=MAX_WITHIN_S)  # seconds; None: no limit

    @field_validator("to")
    @classmethod
    def _an_address(cls, value: str) -> str:
        return address(value)

    @field_validator("within", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("is a number of seconds above 0, or a timedelta")
        return value.total_seconds() if isinstance(value, timedelta) else value


class Addressees(BaseModel):
    """The people who may answer a request: those of the first step, after its time those of the next. After the last
    step's time an approval is denied and a question skipped.

    An address is `owner` (of the run), `staff`, `user:NAME`, `group:NAME` or `permission:app.codename`. `four_eyes`:
    the owner of the run answers at the address `owner` alone, which is a confirmation; None uses the site's
    RAVI["FOUR_EYES"].
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: tuple[Step, ...] = Field(min_length=1, max_length=MAX_STEPS)
    four_eyes: bool | None = None

    @field_validator("steps")
    @classmethod
    def _only_the_last_waits_for_ever(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        for step in steps[:-1]:
            if step.within is None:
                raise ValueError(f"{step.to} has no time limit, so the steps behind it are never asked: give it within")
        return steps

    @classmethod
    def of(cls, value: Any, field: str = "to") -> Addressees:
        """From an address, a list of addresses and `(address, seconds or timedelta)` pairs, or the JSON of one.

        Raises InvalidInputError that names `field`.
        """
        if isinstance(value, cls):
            return value
        try:
            if isinstance(value, dict):
                return cls.model_validate({"steps": [value]} if "to" in value else value)
            many = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            return cls(steps=tuple(_step(one) for one in many))
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(str(part) for part in fault["loc"])
            words = fault["msg"].removeprefix("Value error, ")
            raise InvalidInputError(f"{field}: {f'{place}: ' if place else ''}{words}", field=field) from None
        except ValueError as error:
            raise InvalidInputError(f"{field}: {error}", field=field) from None

    @property
    def within(self) -> float | None:
        """Seconds until the last step ends; None if it waits forever."""
        last = self.steps[-1].within
        return None if last is None else sum(step.within or 0.0 for step in self.steps)

    def to_json(self) -> Any:
        """The shortest form that `of` reads."""
        said: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        steps = [step["to"] if set(step) == {"to"} else step for step in said["steps"]]
        if self.four_eyes is not None:
            return {**said, "steps": said["steps"]}
        return steps[0] if len(steps) == 1 else steps


def address(value: Any) -> str:
    """The address without spaces. Raises ValueError for another value."""
    text = value.strip() if isinstance(value, str) else ""
    kind, colon, name = text.partition(":")
    if len(text) <= MAX_ADDRESS and "\0" not in text:
        if text in (OWNER, STAFF):
            return text
        if kind in NAMED and colon and name.strip() and (kind != "permission" or "." in name):
            return f"{kind}:{name.strip()}"
    raise ValueError(f"{value!r} is no address: owner, staff, user:NAME, group:NAME or permission:app.codename")


def _step(value: Any) -> Step:
    if isinstance(value, Step):
        return value
    if isinstance(value, dict):
        return Step.model_validate(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        return Step(to=value[0], within=value[1])
    return Step(to=value)


Verdict = Literal["approved", "denied", "skipped", "modified"]


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The decision on a call: an `approval_handler` may return one, and every approval ends in one.

    arguments: with "modified", the tool's arguments in place of the model's. reason: for the model. by: the person who
    decided, for the record.
    """

    decision: Verdict
    arguments: dict[str, Any] | None = None
    reason: str = ""
    by: str = ""

    @property
    def allows(self) -> bool:
        """Whether the tool is called. Only these two decisions allow it."""
        return self.decision == "approved" or (self.decision == "modified" and isinstance(self.arguments, dict))
