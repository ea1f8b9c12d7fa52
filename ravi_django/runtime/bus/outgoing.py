"""Events of a site's own, in the outbox."""

from __future__ import annotations

from ravi_django.conf import conf
from ravi_django.kernel import Event, InputTooLargeError
from ravi_django.kernel.secrets import refuse_secrets
from ravi_django.runtime.bus.base import EVENTS, check_topic
from ravi_django.runtime.store import outbox


def enqueue(event: Event, topic: str = EVENTS) -> bool:
    """Tell of a change in the transaction that makes it: rolled back with it, and on the bus once it has committed.

    False, and nothing is written, when the site has no event bus. Raises SecretRefusedError, InputTooLargeError and
    ValueError for a topic that is none.
    """
    check_topic(topic)
    refuse_secrets(event.data, "data")
    size = len(event.model_dump_json())
    if size > conf.MAX_INPUT_BYTES:
        raise InputTooLargeError(f"the event has {size} bytes, the limit is {conf.MAX_INPUT_BYTES}", field="data")
    if not outbox.is_on():
        return False
    outbox.write([event], topic)
    return True
