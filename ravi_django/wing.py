"""The wings: parts of the app that a site leaves out by RAVI["WINGS"]. Each names in `wings/<name>/wing.py` what the
core calls. The core imports no wing; the modules with the public names load them at first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from ravi_django.kernel.errors import UnsupportedError

NAMES = ("feeds", "events", "protocols", "guards")
Paths = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wing:
    """What a wing registers, by name. The values are paths below the wing's folder, imported at first use."""

    name: str
    calls: Paths = field(default_factory=dict)  # functions that the core calls: such as "ctx.emit"
    kinds: Paths = field(default_factory=dict)  # (spec, key, address, model, options) -> the agent, by the spec's kind
    urls: Paths = field(default_factory=dict)  # (router) -> URL patterns of the API
    admin: Paths = field(default_factory=dict)  # classes, registered by the import of their modules
    sweep: Paths = field(default_factory=dict)  # () -> runs to hint, or None
    tasks: Paths = field(default_factory=dict)  # of Celery, by name
    checks: Paths = field(default_factory=dict)  # () -> messages of `manage.py check`
    health: Paths = field(default_factory=dict)  # () -> the detail of the health check, or None
    frames: Paths = field(default_factory=dict)  # (entry) -> a progress frame, by the name of a row of ctx.log
    rehearsal: Paths = field(default_factory=dict)  # (instructions, text) -> the rehearsal model's answer, or None
    findings: Paths = field(default_factory=dict)  # () -> findings of the doctor
    metrics: Paths = field(default_factory=dict)  # () -> text for Prometheus
    prune: Paths = field(default_factory=dict)  # (seconds, dry_run) -> rows, by the kind in RETENTION

    def load(self, path: str) -> Any:
        module, _, name = f"ravi_django.wings.{self.name}.{path}".rpartition(".")
        return getattr(import_module(module), name)


@cache
def known() -> dict[str, Wing]:
    return {name: import_module(f"ravi_django.wings.{name}.wing").WING for name in NAMES}


def names() -> tuple[str, ...]:
    """Of this site; all, where no site has been set up."""
    if (django := sys.modules.get("django.conf")) is None or not django.settings.configured:
        return NAMES
    from ravi_django.conf import conf

    return tuple(name for name in NAMES if name in conf.WINGS)


def wings() -> list[Wing]:
    """Those of the site."""
    return [known()[name] for name in names()]


def each(point: str, *, left_out: bool = False) -> Iterator[tuple[str, Any]]:
    """What the site's wings register at this point, with its name. `left_out`: also other wings, whose rows stay."""
    for wing in known().values() if left_out else wings():
        for name, path in getattr(wing, point).items():
            yield name, wing.load(path)


def require(wing: str, user: str) -> None:
    """Raises UnsupportedError if the site leaves the wing out."""
    if wing not in names():
        raise UnsupportedError(f"{user} needs the wing {wing!r}, which RAVI['WINGS'] leaves out")


def find(point: str, name: str) -> Any:
    """What a wing of the site registers under this name, or None."""
    return next((wing.load(paths[name]) for wing in wings() if name in (paths := getattr(wing, point))), None)


def call(name: str) -> Callable[..., Any]:
    """The function that a wing registers under this name. Raises UnsupportedError if the site leaves the wing out."""
    wing = next(wing for wing in known().values() if name in wing.calls)
    require(wing.name, name)
    function: Callable[..., Any] = wing.load(wing.calls[name])
    return function


def public(module: str, exports: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` that loads public names at first use: `exports` has them by module, separated by spaces."""
    modules = {name: path for path, exported in exports.items() for name in exported.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if modules[name].startswith("wings."):
            require(modules[name].split(".")[1], f"{module}.{name}")
        return getattr(import_module(f"ravi_django.{modules[name]}"), name)

    return load
