"""`AgentSpec`: an agent as data, for a form and a database row. `rebuild_agent` makes the agent.

Each kind of agent has its own fields. A spec cannot send the site's keys elsewhere or stop a worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from ravi_django import wing
from ravi_django.agents.messages import checked_names
from ravi_django.agents.react.result import ResultType
from ravi_django.agents.tools.approvers import Approvers
from ravi_django.agents.tools.delegate import handoff_name
from ravi_django.kernel import AgentId, ExecutionBudget, GenerationOptions, HistoryRetention, InvalidInputError, Risk
from ravi_django.kernel.checks import check_text, did_you_mean
from ravi_django.kernel.identity import TopicId
from ravi_django.kernel.json_values import check_storable
from ravi_django.kernel.secrets import secret_names

NEW_ITEM = "new_feed_item"  # the signal that announces a published message
PER_GENERATION = 20  # items
LONGEST = 4000  # characters of preferences
MAX_EVERY_S = 366 * 24 * 3600
FREE_CHOICES = ("auto", "none", "required")
_STRICT = ConfigDict(frozen=True, extra="forbid")


class Variable(BaseModel):
    """A variable of the instructions. Runs pass its value in `metadata["variables"]`."""

    model_config = _STRICT

    description: str = ""  # for the person who fills it in
    default: Any = None  # JSON; used if a run passes no value
    required: bool = False  # refuse a run without a value if there is no default


class ModelSettings(BaseModel):
    """Generation options; None means the provider's default."""

    model_config = _STRICT

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)  # of output
    stop: list[str] | None = None
    reasoning_effort: str | None = None  # as the provider names it: "low", "medium", "high"
    extra: dict[str, Any] = Field(default_factory=dict)  # options of EXTRAS, passed to the provider unchanged

    @property
    def generation(self) -> GenerationOptions:
        return GenerationOptions(**self.model_dump(exclude_none=True))


class Window(BaseModel):
    """How much of a long conversation the model gets. A plain number means that many messages."""

    model_config = _STRICT

    messages: int | None = Field(default=None, ge=1)  # the newest ones
    tokens: int | None = Field(default=None, ge=1)  # at most, see TokenBudgetComposed

    @model_validator(mode="before")
    @classmethod
    def _of_number(cls, value: Any) -> Any:
        return {"messages": value} if isinstance(value, int) and not isinstance(value, bool) else value


class SubAgent(BaseModel):
    """An agent to delegate tasks to. In JSON its address alone if the other fields are defaults."""

    model_config = _STRICT

    agent: str  # the address, type/key
    description: str = ""  # for the model: which tasks to delegate
    timeout: float = Field(default=120.0, gt=0)  # seconds to wait for its answer

    @model_validator(mode="before")
    @classmethod
    def _of_address(cls, value: Any) -> Any:
        return {"agent": value} if isinstance(value, str | AgentId) else value

    @field_validator("agent", mode="before")
    @classmethod
    def _an_address(cls, value: Any) -> str:
        return str(AgentId.parse(str(value) if isinstance(value, AgentId) else value))

    @model_serializer
    def _short(self) -> Any:
        values = {name: getattr(self, name) for name in ("description", "timeout")}
        changed = {name: value for name, value in values.items() if value != type(self).model_fields[name].default}
        return {"agent": self.agent, **changed} if changed else self.agent

    @property
    def tool_name(self) -> str:
        return handoff_name(AgentId.parse(self.agent))


class AgentSpec(BaseModel):
    """An agent without code: every part is named."""

    model_config = _STRICT

    model: str = Field(default="", pattern=r"\S")  # as litellm names it; a personal feed needs none
    fallbacks: list[str] = Field(default_factory=list)  # the models to try if it fails, in this order
    system_instructions: str = ""  # the template's text
    variables: dict[str, Variable] = Field(default_factory=dict)  # of the template, by name
    tool_names: list[str] = Field(default_factory=list)  # names under which tools are registered
    sub_agents: list[SubAgent] = Field(default_factory=list)  # each becomes a tool `handoff_<key>`
    max_iterations: int = Field(default=10, ge=1)  # model calls for one message
    budget: ExecutionBudget | None = None  # for each run
    retention: HistoryRetention = HistoryRetention.PERMANENT  # of the conversation's turns
    approval_required_risk: Risk | None = None  # tools of at least this risk need an approval; None: "high"
    approvers: Any = None  # who gives it: an address, several, or such by tool name, risk or "*"; None: nobody, denied
    client_tools: StrictBool | Literal["high"] = False  # whether runs take their client's tools; "high": approved first
    starter_prompts: list[str] = Field(default_factory=list)  # suggested first messages
    welcome: str = ""  # shown before the first message
    initial_tool_choice: str | None = None  # "auto", "none", "required" or a tool's name, for the first model call
    options: ModelSettings = Field(default_factory=ModelSettings)  # of each model call
    window: Window | None = None  # None: the newest 100 messages
    result_schema: dict[str, Any] | None = None  # JSON Schema of the answer; None: free text
    name: str = Field(default="", max_length=200)  # for people
    description: str = ""  # for people, and for agents that hand over to it
    kind: Literal["react", "information", "personal_feed"] = "react"  # its class, see CLASSES
    output_topic: str | None = None  # type/source, for answers if nobody asked for a reply
    source_signal: str = "new_source_item"  # kind information: the signal that brings an item
    follow_topics: list[str] = Field(default_factory=list)  # kind personal_feed: each type/source
    preferences: str = Field(default="", max_length=LONGEST)  # kind personal_feed: used if the run has none
    every_s: int = Field(default=0, ge=0, le=MAX_EVERY_S)  # deliveries at most once in so many seconds; 0: each at once
    items_per_generation: int = Field(default=PER_GENERATION, ge=1)  # both: then the run continues as new
    public_signals: list[str] = Field(default_factory=list)  # that the owner of a run may send over REST

    @field_validator("approvers", mode="before")
    @classmethod
    def _as_shortest_form(cls, value: Any) -> Any:
        try:
            return Approvers.of(value).to_json()
        except InvalidInputError as error:
            raise ValueError(str(error).removeprefix("approvers: ")) from None

    def to_json(self) -> dict[str, Any]:
        """For the database row: the values that are not defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


def validate_spec(
    spec: Mapping[str, Any] | AgentSpec,
    known_tools: Iterable[str] | None = None,
    known_agents: Iterable[Any] | None = None,
) -> AgentSpec:
    """Validate a spec. It may use only the names in `known_tools` and the addresses in `known_agents`; None allows any.

    Raises InvalidInputError with the fix; its `field` is the place (`tool_names.1`, `budget.max_tokens`).
    """
    if isinstance(spec, AgentSpec):
        checked = spec
    else:
        if not isinstance(spec, Mapping):
            raise InvalidInputError(f"a spec must be an object with {_fields_of('')}, not {spec!r}", field="spec")
        refuse_unstorable(spec)
        try:
            checked = AgentSpec.model_validate(dict(spec))
        except ValidationError as error:
            raise _first_fault(error) from None
    check_kind(checked)
    _check_tools(checked, None if known_tools is None else list(known_tools))
    _check_agents(checked, None if known_agents is None else sorted(map(str, known_agents)))
    names = [*checked.tool_names, *(sub_agent.tool_name for sub_agent in checked.sub_agents)]
    choices = [*(FREE_CHOICES if names else ("auto", "none")), *names]
    if checked.initial_tool_choice not in (None, *choices):
        raise _fault("initial_tool_choice", f"{checked.initial_tool_choice!r} is not one of {', '.join(choices)}")
    Approvers.of(checked.approvers).check_names(names)
    _check_result(checked)
    _check_secrets(checked)
    checked_names(checked.public_signals)
    check_extras(checked.options.extra, "options.extra")
    check_models([checked.model, *checked.fallbacks])
    return checked


def _fault(field: str, detail: str) -> InvalidInputError:
    return InvalidInputError(f"{field}: {detail}", field=field)


def _check_tools(spec: AgentSpec, known: list[str] | None) -> None:
    seen: set[str] = set()
    for index, name in enumerate(spec.tool_names):
        field = f"tool_names.{index}"
        if name in seen:
            raise _fault(field, f"{name!r} appears twice; name each tool once")
        if known is not None and name not in known:
            tools = ", ".join(sorted(known)) or "none"
            raise _fault(
                field,
                f"unknown tool {name!r}; the tools are: {tools}. Register more with ravi_django.register_tool"
                f"{did_you_mean(name, known)}",
            )
        seen.add(name)
    for index, sub_agent in enumerate(spec.sub_agents):
        if sub_agent.tool_name in seen:
            raise _fault(
                f"sub_agents.{index}",
                f"{sub_agent.agent} would have the tool name {sub_agent.tool_name!r}, which is taken",
            )
        seen.add(sub_agent.tool_name)


def _check_agents(spec: AgentSpec, known: list[str] | None) -> None:
    for index, sub_agent in enumerate(spec.sub_agents):
        if known is not None and sub_agent.agent not in known:
            agents, near = ", ".join(known) or "none", did_you_mean(sub_agent.agent, known)
            raise _fault(f"sub_agents.{index}", f"unknown agent {sub_agent.agent!r}; the agents are: {agents}{near}")


def _check_result(spec: AgentSpec) -> None:
    if spec.result_schema is None:
        return
    try:
        ResultType(spec.result_schema)
    except InvalidInputError as error:
        detail = str(error).removeprefix("result_model ")
        raise InvalidInputError(f"result_schema {detail}", field="result_schema") from error


def _check_secrets(spec: AgentSpec) -> None:
    defaults = {name: variable.default for name, variable in spec.variables.items()}
    for field in (*secret_names(spec.options.extra, "options.extra"), *secret_names(defaults, "variables")):
        raise InvalidInputError(
            f"{field} looks like a key or a password, and a spec is visible; use the settings or the provider's "
            "environment variables",
            field=field,
        )


def _first_fault(error: ValidationError) -> InvalidInputError:
    fault = error.errors(include_url=False)[0]
    path = [str(part) for part in fault["loc"]]
    if fault["type"] == "extra_forbidden":
        *above, name = path
        near = did_you_mean(name, _fields_of(*above))
        return _fault(".".join(path), f"unknown field {name!r}; the fields are: {', '.join(_fields_of(*above))}{near}")
    if len(path) > 2 and path[0] == "sub_agents" and isinstance(fault["input"], str) and path[2] == "agent":
        path = path[:2]
    return _fault(".".join(path) or "spec", fault["msg"].removeprefix("Value error, "))


_PARTS: dict[str, type[BaseModel]] = {
    "variables": Variable,
    "options": ModelSettings,
    "window": Window,
    "sub_agents": SubAgent,
    "budget": ExecutionBudget,
}


def _fields_of(*path: str) -> list[str]:
    return list(_PARTS.get(path[0] if path else "", AgentSpec).model_fields)


REACT, INFORMATION, PERSONAL_FEED = "react", "information", "personal_feed"
CLASSES = {REACT: "ReActAgent", INFORMATION: "InformationAgent", PERSONAL_FEED: "PersonalFeedAgent"}
_ALL = {"kind", "model", "fallbacks", "system_instructions", "variables", "options", "name", "description"}
_ALL |= {"welcome", "starter_prompts", "public_signals"}
_OF_A_FEED = {"follow_topics", "preferences", "every_s", "items_per_generation"}
_OF_NEWS = {"output_topic", "source_signal", "items_per_generation"}
_FIELDS_OF_KIND = {INFORMATION: _ALL | _OF_NEWS, PERSONAL_FEED: _ALL | _OF_A_FEED}
_NOT_REACT = (_OF_A_FEED | _OF_NEWS) - {"output_topic"}


def check_kind(spec: AgentSpec) -> None:
    """Raises InvalidInputError for a field of another kind of agent, for an invalid topic, and without a model."""
    fields = spec.model_dump(exclude_defaults=True)
    allowed = _FIELDS_OF_KIND.get(spec.kind)
    for field in fields:
        if field in _NOT_REACT if allowed is None else field not in allowed:
            raise InvalidInputError(
                f"an agent of kind {spec.kind} has no field {field}; leave it out, or choose another kind",
                field=field,
            )
    if not spec.model and spec.kind != PERSONAL_FEED:
        raise InvalidInputError("model is required; enter a litellm name such as openai/gpt-4o-mini", field="model")
    if spec.output_topic:
        topic_of(spec.output_topic, "output_topic")
    for index, topic in enumerate(spec.follow_topics):
        topic_of(topic, f"follow_topics.{index}")
    checked_signal(spec.source_signal)
    if spec.kind != REACT and wing.find("kinds", spec.kind) is None:
        raise _fault("kind", f"RAVI['WINGS'] leaves out the wing that has agents of kind {spec.kind}")


def topic_of(value: TopicId | str, field: str) -> TopicId:
    if isinstance(value, TopicId):
        return value
    try:
        return TopicId.parse(value)
    except InvalidInputError as error:
        raise InvalidInputError(f"{field}: {error}", field=field) from None


def checked_signal(value: Any) -> str:
    check_text("source_signal", value, 200)
    if value == NEW_ITEM:
        raise InvalidInputError(
            f"source_signal: {NEW_ITEM} announces published messages, which an InformationAgent always reads; leave "
            "it out, or choose another name",
            field="source_signal",
        )
    return str(value)


MAX_DEPTH = 50  # levels of nested objects and lists

# Generation options of the providers. All others are refused: litellm also reads hosts, credentials, headers, callbacks
# and other models from these keywords, and a logger's host from `metadata`.
EXTRAS = frozenset(
    {
        "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "min_p", "parallel_tool_calls",
        "presence_penalty", "prompt_cache_key", "reasoning", "repetition_penalty", "safety_identifier", "seed",
        "service_tier", "thinking", "top_a", "top_k", "top_logprobs", "user", "verbosity",
    }
)  # fmt: skip
_ADDRESS = re.compile(r"//|\\|\.\.|[\s?#]")


def check_extras(extras: Mapping[str, Any], field: str) -> None:
    """Raises InvalidInputError, naming the field, for an option that is not in EXTRAS."""
    for name in extras:
        if name not in EXTRAS:
            raise InvalidInputError(
                f"{field}.{name} is not an option of a spec; the options are {', '.join(sorted(EXTRAS))}. Set the "
                "hosts and keys of models in the settings or the environment",
                field=f"{field}.{name}",
            )


def check_models(names: Sequence[str]) -> None:
    """`names` are the model and its fallbacks. Raises InvalidInputError for an address."""
    for index, name in enumerate(names, -1):
        if _ADDRESS.search(name.strip()):
            raise _fault(
                "model" if index < 0 else f"fallbacks.{index}",
                f"{name!r} is not a model name like provider/model; set its host in the settings or the environment",
            )


def refuse_unstorable(spec: Mapping[str, Any]) -> None:
    """Raises InvalidInputError for text that the database cannot store, and for data that is nested too deep."""
    for field, text in _texts(spec, "", 0):
        if "\0" in text or (not text.isascii() and text != text.encode(errors="replace").decode()):
            raise InvalidInputError(
                f"{field} has a NUL character or half a surrogate pair, which the database cannot store", field=field
            )
    check_storable(spec, texts=False)


def _texts(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping | list | tuple) and depth > MAX_DEPTH:
        field = ".".join(path.split(".")[: 2 if path.startswith(("options", "variables")) else 1])
        raise InvalidInputError(f"{field} has more than {MAX_DEPTH} levels of nesting; use fewer", field=field)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield path or "spec", str(key)
            yield from _texts(inner, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{path}.{number}", depth + 1)
