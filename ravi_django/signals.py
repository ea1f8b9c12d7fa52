"""Django signals about requests to people and failed runs, sent after the commit by the process that made the change.

Receivers of a request's signal get `request`, the current HumanRequest. An exception of a receiver is logged and has no
other effect. A slow receiver of a request's signal blocks a database thread of a worker: start a task instead. A
process that dies between its commit and the signal sends none: read the rows or the audit log where no change may be
missed.
"""

from django.dispatch import Signal

request_opened = Signal()  # also when it is opened again after a retry
request_answered = Signal()  # with `by`, the user; None for the site's own operator
request_closed = Signal()  # without an answer: it expired, or its run has ended or continued
request_changed = Signal()  # it was escalated or reassigned
run_failed = (
    Signal()
)  # a run failed or is blocked: with `run` and `status`, "failed" or "blocked"; on a thread of its own
