"""Adding a source in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError

from ravi_django.kernel import InvalidInputError
from ravi_django.models import Session, Source
from ravi_django.runtime import sealed
from ravi_django.runtime.store import sources


def add_source(
    kind: str,
    location: str,
    agent: str,
    *,
    user: Any = None,
    tenant: str = "",
    name: str = "",
    signal: str = "new_source_item",
    every_s: int = 900,
    options: Mapping[str, Any] | None = None,
    secret: str = "",
    session: Session | UUID | None = None,
) -> Source:
    """Have `agent` told of what is new at `location`, as a run of `user` (None: the system) in `session`, or in one
    that its first item makes. `kind` is feed, webhook, model, drop or adapter; see docs/sources.md for their options.

    Raises InvalidInputError, whose `field` names what is wrong; nothing is written then.
    """
    from ravi_django.runtime import source_rules

    if kind not in Source.Kind.values:
        raise InvalidInputError(f"kind must be one of {', '.join(Source.Kind.values)}, not {kind!r}", field="kind")
    source = Source(
        kind=kind,
        location=location,
        agent=str(agent),
        owner=user if user is not None and user.is_authenticated else None,
        tenant=tenant,
        name=(name or location or str(agent))[:200],
        signal=signal,
        every_s=every_s,
        options=dict(options or {}),
        secret=secret,
        home=_home(session, user, tenant),
    )
    for field, fault in source_rules.faults(source):
        raise InvalidInputError(f"{field}: {fault}", field=field)
    try:
        source.clean_fields()
    except ValidationError as error:
        field, faults = next(iter(error.message_dict.items()))
        raise InvalidInputError(f"{field}: {' '.join(faults)}", field=field) from None
    source.secret = sealed.seal(secret) if secret else ""
    return sources.add_source(source)


def _home(session: Session | UUID | None, user: Any, tenant: str) -> Session | None:
    """One of the owner's own."""
    if session is None:
        return None
    wanted = session.id if isinstance(session, Session) else session
    owner_id = getattr(user, "pk", None)
    found: Session | None = Session.objects.filter(id=wanted, owner_id=owner_id, tenant=tenant).first()
    if found is None:
        raise InvalidInputError("session: there is no such session of this owner and tenant", field="session")
    return found
