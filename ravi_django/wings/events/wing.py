"""What this wing registers."""

from ravi_django.wing import Wing

WING = Wing(
    name="events",
    calls={"the outbox's hint": "relay.hint"},
    checks={"the event bus": "surfaces.check"},
    health={"the event bus": "surfaces.health"},
    findings={"outbox": "surfaces.outbox"},
    metrics={"the event bus": "surfaces.metrics"},
    sweep={"the event bus": "relay.sweep"},
    tasks={"ravi.relay_events": "relay.relay_safely"},
    prune={"outbox": "relay.prune"},
)
