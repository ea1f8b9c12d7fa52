"""Add a source in Python, and check the fields of a source by its kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.core.exceptions import ValidationError
from pydantic_core import to_json

from ravi_django.engine.db import clock
from ravi_django.engine.lease.sleeps import check_name
from ravi_django.kernel import AgentNotFoundError, InvalidInputError
from ravi_django.kernel.checks import seconds_of
from ravi_django.kernel.secrets import secret_names
from ravi_django.models import Session, Source
from ravi_django.runs.catalog import specs
from ravi_django.runs.checks import owner_of
from ravi_django.sealing import seal
from ravi_django.wings.feeds.fetching import adapter, signatures
from ravi_django.wings.feeds.fetching.parse import NEWEST
from ravi_django.wings.feeds.sources.items import MOVED, STATE, TODAY

Fault = tuple[str, str]  # the field, and its error as text

OPTIONS_BYTES = 64 * 1024
LEAST_S = 60  # between two polls of another server
EVERYWHERE = ("edits", "metadata", "max_items_a_day")
WRITTEN_HERE = (STATE, MOVED, TODAY)  # options that only polls and deliveries write
SECRET_LEAST, SECRET_MOST = 16, 150  # characters; the column holds two with a comma between them
POLLED = frozenset({Source.Kind.FEED, Source.Kind.ADAPTER})


def errors_of(source: Source) -> Iterator[Fault]:
    """The faults of a source that a user has entered."""
    options = source.options
    if not isinstance(options, dict):
        yield "options", 'Enter a JSON object like {"edits": true}.'
        return
    yield from _agent(source)
    yield from _options(typed(options))
    yield from _names(source.kind, typed(options))
    if source._state.adding:
        for name in written(options):
            yield "options", f"{name} is set by polls and deliveries; leave it out"
    try:
        check_name(source.signal)
    except InvalidInputError as error:
        yield "signal", str(error)
    if source.kind in POLLED and (source.every_s is None or source.every_s < LEAST_S):
        yield "every_s", f"Enter {LEAST_S} or more seconds."
    if source.kind in _OF_KIND:
        yield from _OF_KIND[source.kind](source)


def typed(options: Any) -> dict[str, Any]:
    """The options without WRITTEN_HERE."""
    return {name: options[name] for name in options if name not in WRITTEN_HERE} if isinstance(options, dict) else {}


def written(options: Any) -> dict[str, Any]:
    """The options in WRITTEN_HERE."""
    return {name: options[name] for name in WRITTEN_HERE if name in options} if isinstance(options, dict) else {}


def _agent(source: Source) -> Iterator[Fault]:
    try:
        agent = specs.find(source.agent)
    except AgentNotFoundError:
        yield "agent", f"There is no agent {source.agent}, or it is disabled."
        return
    metadata = source.options.get("metadata", {})
    if not isinstance(metadata, dict):
        yield "options", f"metadata must be an object, not {metadata!r}"
        return
    try:
        agent.check_variables(metadata)
    except InvalidInputError as error:
        yield "options", f"metadata: {error}"


def _options(options: dict[str, Any]) -> Iterator[Fault]:
    for path in secret_names(options):
        yield "options", f"{path} looks like a key or a password; options are visible, so keep it in the environment"
    if not isinstance(options.get("edits", False), bool):
        yield "options", f"edits must be true or false, not {options['edits']!r}"
    if not _is_number(options.get("max_items_a_day", 1)):
        yield "options", f"max_items_a_day must be a number from 1 on, not {options['max_items_a_day']!r}"
    if (size := len(to_json(options))) > OPTIONS_BYTES:
        yield "options", f"{size} bytes, the limit is {OPTIONS_BYTES}"


def _names(kind: str, options: dict[str, Any]) -> Iterator[Fault]:
    if kind not in _NAMES:  # an adapter has its own options
        return
    known = (*EVERYWHERE, *_NAMES[kind])
    for name in options:
        if name not in known:
            yield "options", f"a {kind} has no option {name}; its options are: {', '.join(known)}"


def _is_number(value: Any, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _feed(source: Source) -> Iterator[Fault]:
    if not _is_number(source.options.get("newest", 1), NEWEST):
        yield "options", f"newest must be a number from 1 to {NEWEST}, not {source.options['newest']!r}"
    try:
        parts = urlsplit(source.location)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_web = False
    if not is_web or any(char.isspace() for char in source.location):
        yield "location", "Enter the feed's URL, like https://example.com/feed.xml."
    elif parts.username is not None or parts.password is not None:
        yield "location", "Enter a URL without a user name and password: it is visible here."


def _webhook(source: Source) -> Iterator[Fault]:
    if source.location:
        yield "location", "Leave it empty: the webhook's URL is created here."
    secret = source.secret if source._state.adding else ""  # a saved one is encrypted
    if secret and ("," in secret or not SECRET_LEAST <= len(secret) <= SECRET_MOST):
        wanted = f"{SECRET_LEAST} to {SECRET_MOST} characters and no comma (it has {len(secret)} characters)"
        yield "secret", f"{wanted}; or leave it empty, and call ravi_django.wings.feeds.sources.webhooks.make_secret"
    if (scheme := source.options.get("scheme", signatures.RAVI)) not in list(signatures.SCHEMES):
        yield "options", f"scheme must be one of {', '.join(signatures.SCHEMES)}, not {scheme!r}"
    yield from (("options", fault) for fault in adapter.option_errors(source.options))


def _adapter(source: Source) -> Iterator[Fault]:
    try:
        adapter.find_source_adapter(source.location)
    except LookupError as error:
        yield "location", str(error.args[0])


_NAMES: dict[str, tuple[str, ...]] = {
    Source.Kind.FEED: ("newest",),
    Source.Kind.WEBHOOK: ("scheme", *adapter.PATHS, "keep"),
}
_OF_KIND: dict[str, Callable[[Source], Iterator[Fault]]] = {
    Source.Kind.FEED: _feed,
    Source.Kind.WEBHOOK: _webhook,
    Source.Kind.ADAPTER: _adapter,
}


def add_source(
    kind: str,
    location: str,
    agent: str,
    *,
    user: Any = None,
    tenant: str = "",
    name: str = "",
    signal: str = "new_source_item",
    every_s: int | timedelta = 900,
    options: Mapping[str, Any] | None = None,
    secret: str = "",
    session: Session | UUID | None = None,
) -> Source:
    """Deliver new items of `location` to `agent`, as a run of `user` (None: the system) in `session`, or in a session
    that the first item creates. `kind` is feed, webhook or adapter; docs/reference/source-rules.md has their options.

    Raises InvalidInputError, whose `field` names what is wrong; nothing is written then.
    """
    if kind not in Source.Kind.values:
        raise InvalidInputError(f"kind must be one of {', '.join(Source.Kind.values)}, not {kind!r}", field="kind")
    source = Source(
        kind=kind,
        location=location,
        agent=str(agent),
        owner=owner_of(user),
        tenant=tenant,
        name=(name or location or str(agent))[:200],
        signal=signal,
        every_s=seconds_of(every_s),
        options=dict(options or {}),
        secret=secret,
        home=_home(session, user, tenant),
    )
    for field, fault in errors_of(source):
        raise InvalidInputError(f"{field}: {fault}", field=field)
    try:
        source.clean_fields()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise InvalidInputError(f"{field}: {' '.join(messages)}", field=field) from None
    source.secret = seal(secret) if secret else ""
    clock.stamp(source).save(force_insert=True)
    return source


def _home(session: Session | UUID | None, user: Any, tenant: str) -> Session | None:
    if session is None:
        return None
    wanted = session.id if isinstance(session, Session) else session
    owner_id = getattr(user, "pk", None)
    home: Session | None = Session.objects.filter(id=wanted, owner_id=owner_id, tenant=tenant).first()
    if home is None:
        raise InvalidInputError("session: this owner and tenant have no such session", field="session")
    return home
