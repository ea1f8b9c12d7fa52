"""The names of keys and passwords: their values are never stored or shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from ravi_django.kernel.errors import SecretRefusedError

_NAME = re.compile(
    r"(?:^|[_-])(?:api_?key|key_?secret|secrets?|(?:secret_)?access_key|password|passwd|credentials?|authorization"
    r"|cookie|private_key|(?:access|auth|bearer|ad|id|session|refresh|security)_token)(?:$|[_-])|^(?:token|key)$"
)
_PUBLIC = frozenset({"aws_access_key_id"})
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """`api_key`, `X-Api-Key`, `aws_secret_access_key`, `authorization`, `apiKey`: yes. `max_tokens`: no."""
    plain = _HUMP.sub("_", name).lower().replace("-", "_")
    return plain not in _PUBLIC and _NAME.search(plain) is not None


def secret_names(value: Any, at: str = "") -> Iterator[str]:
    """The dotted paths of keys and passwords inside a JSON value."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            path = f"{at}.{name}" if at else str(name)
            if item and is_secret(str(name)):
                yield path
            else:
                yield from secret_names(item, path)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from secret_names(item, f"{at}.{index}")


def holds_secret(name: str, value: Any) -> bool:
    """Whether a named value is a secret or contains one."""
    return is_secret(name) or next(secret_names(value), None) is not None


def secret_values(value: Any, *, inside: bool = False) -> Iterator[str]:
    """The texts under such a name, at any depth; of `Bearer abc` also `abc`."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from secret_values(item, inside=inside or is_secret(str(name)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secret_values(item, inside=inside)
    elif inside and isinstance(value, str):
        yield value
        yield from value.split()[1:]


def refuse_secrets(value: Any, field: str) -> None:
    """Raises SecretRefusedError that names the path, never the value."""
    for path in secret_names(value, field):
        raise SecretRefusedError(path)
