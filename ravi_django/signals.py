"""Django signals about requests to people, sent once their transaction has committed, in the process that did it.

Receivers are called with `request`, the HumanRequest as it stands. A receiver that raises is logged and harms nothing;
one that takes long holds up a database thread of a worker: start a task instead. A process that dies between its commit
and the signal sends none: what must not be missed is in the rows, and in the audit log.
"""

from django.dispatch import Signal

request_opened = Signal()  # also one that is asked again after a retry
request_answered = Signal()  # with `by`, the user; None for the site's own operator
request_closed = Signal()  # nobody answered: it expired, or its run has ended or gone on without it
request_changed = Signal()  # others are asked now: it was escalated or reassigned
