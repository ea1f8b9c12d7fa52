"""Addresses. `AgentId` prints `type/key`, `TopicId` prints `type/source`; a namespace other than the default comes
first.

In JSON a topic is written `topic:type/source`, so that a message's target reads back as the same kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ravi_django.kernel.errors import InvalidInputError

DEFAULT_NAMESPACE = "default"
PART = "[A-Za-z0-9_.:@+-]{1,100}"
ADDRESS = f"^({PART}/){{1,2}}{PART}$"  # the text of an address, for a JSON Schema
_PART = re.compile(rf"{PART}\Z")


def _checked(field: str, value: object) -> str:
    if not isinstance(value, str) or not _PART.match(value):
        fix = ". Leave the type out: the class sets it" if field == "key" and "/" in str(value) else ""
        raise InvalidInputError(
            f"{field} must be 1 to 100 letters, digits or any of _ . : @ + -, not {value!r}{fix}", field=field
        )
    return value


class _Address:
    """The shared part of both kinds of address: checks, text form, parsing, and one string in JSON."""

    __slots__: tuple[str, ...] = ()
    _prefix = ""

    def __post_init__(self) -> None:
        for field in self.__slots__:
            _checked(field, getattr(self, field))

    def __str__(self) -> str:
        first, second, namespace = map(self.__getattribute__, self.__slots__)
        return f"{first}/{second}" if namespace == DEFAULT_NAMESPACE else f"{namespace}/{first}/{second}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `first/second` or `namespace/first/second`; raises InvalidInputError."""
        if not isinstance(text, str):
            raise InvalidInputError(f"an address is a string like type/key, not {text!r}", field="agent")
        make: Any = cls
        match text.removeprefix(cls._prefix).split("/"):
            case [first, second]:
                return make(first, second)  # type: ignore[no-any-return]
            case [namespace, first, second]:
                return make(first, second, namespace)  # type: ignore[no-any-return]
        raise InvalidInputError(f"an address looks like type/key or namespace/type/key, not {text!r}", field="agent")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Any:
            if isinstance(value, cls):
                return value
            if not isinstance(value, str) or value.startswith("topic:") != bool(cls._prefix):
                raise ValueError(f"not the text of {cls.__name__}: {value!r}")
            return cls.parse(value)

        def write(value: Any) -> str:
            return f"{value._prefix}{value}"  # a union may ask either class

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write, when_used="always")
        )


@dataclass(frozen=True, slots=True)
class AgentId(_Address):
    """The address of an agent: for routing, never an object reference."""

    type: str  # the kind of agent, e.g. "react"
    key: str  # the agent of that kind
    namespace: str = DEFAULT_NAMESPACE  # separates agents with the same type and key


@dataclass(frozen=True, slots=True)
class TopicId(_Address):
    """The address of a topic that agents follow and emit to."""

    type: str  # the kind of topic, e.g. "news"
    source: str = "default"  # the topic of that kind
    namespace: str = DEFAULT_NAMESPACE  # separates topics with the same type and source

    _prefix = "topic:"
