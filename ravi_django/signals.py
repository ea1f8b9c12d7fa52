"""Django signals about requests to people, sent after the commit by the process that made the change.

Receivers get `request`, the current HumanRequest. An exception of a receiver is logged and has no other effect. A slow
receiver blocks a database thread of a worker: start a task instead. A process that dies between its commit and the
signal sends none: read the rows or the audit log where no change may be missed.
"""

from django.dispatch import Signal

request_opened = Signal()  # also when it is opened again after a retry
request_answered = Signal()  # with `by`, the user; None for the site's own operator
request_closed = Signal()  # without an answer: it expired, or its run has ended or continued
request_changed = Signal()  # it was escalated or reassigned
