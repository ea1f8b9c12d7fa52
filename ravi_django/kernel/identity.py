"""Addresses. `AgentId` prints `type/key`, `TopicId` prints `type/source`; a namespace of one's own comes first.

In JSON a topic is written `topic:type/source`, so that a message's target reads back as what it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ravi_django.kernel.errors import InvalidInputError

DEFAULT_NAMESPACE = "default"
_PART = re.compile(r"[A-Za-z0-9_.:@+-]{1,100}\Z")


def _checked(field: str, value: object) -> str:
    if not isinstance(value, str) or not _PART.match(value):
        raise InvalidInputError(
            f"{field} must be 1 to 100 letters, digits or any of _ . : @ + -, not {value!r}", field=field
        )
    return value


class _Address:
    """What both kinds of address share: text form, parsing, and one string in JSON."""

    __slots__ = ()
    _prefix = ""

    @classmethod
    def _from_parts(cls, first: str, second: str, namespace: str) -> Self:
        raise NotImplementedError  # pragma: no cover

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `first/second` or `namespace/first/second`; raises InvalidInputError."""
        if not isinstance(text, str):
            raise InvalidInputError(f"an address is a string like type/key, not {text!r}", field="agent")
        parts = text.removeprefix(cls._prefix).split("/")
        if len(parts) == 2:
            return cls._from_parts(parts[0], parts[1], DEFAULT_NAMESPACE)
        if len(parts) == 3:
            return cls._from_parts(parts[1], parts[2], parts[0])
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
    """The address of an agent: routing only, never an object reference."""

    type: str  # what kind of agent, e.g. "react"
    key: str  # which one of that kind
    namespace: str = DEFAULT_NAMESPACE

    def __post_init__(self) -> None:
        _checked("type", self.type)
        _checked("key", self.key)
        _checked("namespace", self.namespace)

    @classmethod
    def _from_parts(cls, first: str, second: str, namespace: str) -> AgentId:
        return cls(first, second, namespace)

    def __str__(self) -> str:
        text = f"{self.type}/{self.key}"
        return text if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{text}"


@dataclass(frozen=True, slots=True)
class TopicId(_Address):
    """The address of a topic that agents follow and emit to."""

    type: str  # what kind of topic, e.g. "news"
    source: str = "default"  # which one of that kind
    namespace: str = DEFAULT_NAMESPACE

    _prefix = "topic:"

    def __post_init__(self) -> None:
        _checked("type", self.type)
        _checked("source", self.source)
        _checked("namespace", self.namespace)

    @classmethod
    def _from_parts(cls, first: str, second: str, namespace: str) -> TopicId:
        return cls(first, second, namespace)

    def __str__(self) -> str:
        text = f"{self.type}/{self.source}"
        return text if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{text}"
