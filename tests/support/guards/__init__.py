"""The guards that the system's promises rest on, and what is left of the code without each.

`make mutants` takes them out one at a time and runs the tests named here: one of them has to fail. To add a guard, add
a `Mutant` to a list of the file where it belongs:

- `before` is the guard's text in `file`, where it must stand exactly once (`tests/unit/project/test_mutants.py`
  checks it, so that a change of the code cannot quietly retire a mutant);
- `after` is the same code without the guard. It must still run: a mutant that breaks the import proves nothing;
- `tests` are the files that have to notice, the quickest first; they run in this order and stop at the first failure.
  Give the tests of the guard itself, not the whole suite, and none that hangs without it.

Then `make mutants ARGS="a part of its name"` until it is killed each time.
"""

from __future__ import annotations

from tests.support.guards.access import ACCESS, HIDDEN, KEYS, LIMITS
from tests.support.guards.approvals import APPROVALS
from tests.support.guards.authority import AUTHORITY
from tests.support.guards.budgets import BUDGETS
from tests.support.guards.bus import BUS
from tests.support.guards.bus_relay import BUS_RELAY
from tests.support.guards.delegation import DELEGATION
from tests.support.guards.deletions import DELETIONS
from tests.support.guards.effects import EFFECTS, REPLAY, SWEEP
from tests.support.guards.fan_out import FAN_OUT
from tests.support.guards.feed_page import FEED_PAGE
from tests.support.guards.flows import FLOWS
from tests.support.guards.follower_homes import FOLLOWER_HOMES
from tests.support.guards.generations import GENERATIONS
from tests.support.guards.handoffs import HANDOFF
from tests.support.guards.inbox import INBOX
from tests.support.guards.intake import INTAKE
from tests.support.guards.leases import CLAIM, FENCE, HEARTBEAT, PEOPLE, WAITING
from tests.support.guards.middlewares import MIDDLEWARE
from tests.support.guards.mutant import Mutant
from tests.support.guards.newsrooms import NEWSROOMS
from tests.support.guards.own_queue import OWN_QUEUE
from tests.support.guards.pauses import PAUSES
from tests.support.guards.people import BOARD, QUESTIONS
from tests.support.guards.people_chaos import ANSWERED
from tests.support.guards.proxies import PROXIES
from tests.support.guards.pruning import PRUNING
from tests.support.guards.request_mail import REQUEST_MAIL
from tests.support.guards.requests_rest import REQUESTS_REST
from tests.support.guards.requests_ws import REQUESTS_WS
from tests.support.guards.results import RESULTS
from tests.support.guards.schedules import SCHEDULES
from tests.support.guards.slots import SLOTS
from tests.support.guards.social_graph import SOCIAL_GRAPH
from tests.support.guards.source_limits import SOURCE_LIMITS
from tests.support.guards.source_polls import SOURCE_POLLS
from tests.support.guards.sources import SOURCES
from tests.support.guards.strangers import STRANGERS
from tests.support.guards.streams import STREAMS
from tests.support.guards.surfaces import OWNERS, SUBMIT
from tests.support.guards.trees import TREES

__all__ = ["MUTANTS", "Mutant"]

MUTANTS = [
    *FENCE,
    *CLAIM,
    *HEARTBEAT,
    *WAITING,
    *PEOPLE,
    *QUESTIONS,
    *ANSWERED,
    *PAUSES,
    *OWN_QUEUE,
    *APPROVALS,
    *AUTHORITY,
    *BOARD,
    *EFFECTS,
    *REPLAY,
    *RESULTS,
    *SWEEP,
    *SLOTS,
    *OWNERS,
    *DELETIONS,
    *SUBMIT,
    *STRANGERS,
    *ACCESS,
    *LIMITS,
    *HIDDEN,
    *KEYS,
    *STREAMS,
    *HANDOFF,
    *MIDDLEWARE,
    *DELEGATION,
    *FLOWS,
    *BUDGETS,
    *TREES,
    *REQUEST_MAIL,
    *REQUESTS_REST,
    *REQUESTS_WS,
    *PROXIES,
    *INBOX,
    *NEWSROOMS,
    *GENERATIONS,
    *SOCIAL_GRAPH,
    *PRUNING,
    *FAN_OUT,
    *FOLLOWER_HOMES,
    *BUS,
    *BUS_RELAY,
    *SCHEDULES,
    *SOURCES,
    *SOURCE_POLLS,
    *SOURCE_LIMITS,
    *INTAKE,
    *FEED_PAGE,
]
