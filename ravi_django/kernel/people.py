"""People: the recipients of a request, their order, and their answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

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

    to: str  # an address, see Addressees
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

    steps: tuple[Step, ...] = Field(min_length=1, max_length=MAX_STEPS)  # asked one after the other
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
            path = ".".join(str(part) for part in fault["loc"])
            message = fault["msg"].removeprefix("Value error, ")
            raise InvalidInputError(f"{field}: {f'{path}: ' if path else ''}{message}", field=field) from None
        except ValueError as error:
            raise InvalidInputError(f"{field}: {error}", field=field) from None

    @property
    def within(self) -> float | None:
        """Seconds until the last step ends; None if it waits forever."""
        last = self.steps[-1].within
        return None if last is None else sum(step.within or 0.0 for step in self.steps)

    def to_json(self) -> Any:
        """The shortest form that `of` reads."""
        fields: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        steps = [step["to"] if set(step) == {"to"} else step for step in fields["steps"]]
        if self.four_eyes is not None:
            return {**fields, "steps": fields["steps"]}
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
_ACTIONS = {"approved": "approve", "denied": "deny", "skipped": "skip", "modified": "edit"}
_UNSET: dict[str, Any] = {"arguments": None, "reason": "", "payload": None}


class HumanInput(dict[str, Any]):
    """A person's answer: to a question, to a tool's pause (None in the tool's first call), or to an approval. An
    `approval_handler` may return one.

    Frozen, and a dict of the parts that are set: a tool may return it, a run may store it.
    Raises TypeError for a part of another type.
    """

    __slots__ = ()
    __match_args__ = ("action", "text", "values", "by")

    # answer, skip, cancel or expired; of an approval approve, edit, deny or skip; signal: a program answered instead.
    # No action but "answer", "approve" and "edit" is a consent to anything. The words of `decision` name them too.
    action: str
    text: str  # of an "answer" to a single question
    by: str  # the person
    arguments: dict[str, Any] | None  # of an "edit": the tool's arguments in place of the model's
    reason: str  # of a decision, for the model
    payload: Any  # of a "signal"

    def __init__(
        self,
        action: str,
        text: str = "",
        values: Mapping[str, str] | None = None,
        by: str = "",
        *,
        arguments: dict[str, Any] | None = None,
        reason: str = "",
        payload: Any = None,
    ) -> None:
        for name, value in {"action": action, "text": text, "by": by, "reason": reason}.items():
            if not isinstance(value, str):
                raise TypeError(f"{name} is {value!r:.200}; pass a str, and the arguments of an edit as arguments=…")
        more = {"values": dict(values) if values else None, "arguments": arguments, "reason": reason or None}
        more = {name: value for name, value in more.items() if value is not None}
        if action == "signal":
            more["payload"] = payload
        super().__init__(action=_ACTIONS.get(action, action), text=text, by=by, **more)

    if not TYPE_CHECKING:  # a checker knows the fields above

        def __getattr__(self, name: str) -> Any:
            if name in self or name in _UNSET:
                return self.get(name, _UNSET.get(name))
            raise AttributeError(f"HumanInput has no {name!r}")

    @property
    def values(self) -> _Values:  # type: ignore[override]
        """The answer to each of several questions, by key."""
        return _Values(self)

    @property
    def answered(self) -> bool:
        """Whether the person answered the question: `text` or `values` are the answer."""
        return self.action == "answer"

    @property
    def allows(self) -> bool:
        """Whether the tool is called. Only these two actions allow it."""
        return self.action == "approve" or (self.action == "edit" and isinstance(self.arguments, dict))

    @property
    def decision(self) -> Verdict:
        """The answer to an approval. Anything unknown is denied."""
        if self.allows:
            return "approved" if self.action == "approve" else "modified"
        return "skipped" if self.action == "skip" else "denied"

    def __repr__(self) -> str:
        return f"HumanInput({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> Any:
        return _restored, (dict(self),)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a HumanInput cannot be changed; change a copy: dict(answer)")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse  # type: ignore[assignment]


class _Values(dict[str, str]):
    """`HumanInput.values`. Callable too, as `values()` is a method of every dict."""

    def __init__(self, answer: HumanInput) -> None:
        super().__init__(answer.get("values", {}))
        self._answer = answer

    def __call__(self) -> Any:
        return dict.values(self._answer)


def _restored(parts: dict[str, Any]) -> HumanInput:
    return HumanInput(**parts)


ApprovalDecision = HumanInput
