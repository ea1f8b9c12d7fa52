"""The site and its people in a schedule: they submit, signal, answer, cancel and retry."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.auth.models import User

import ravi_django
from ravi_django.kernel import ConflictError, IllegalTransitionError, KernelError
from ravi_django.models import HumanRequest, Run
from tests.acceptance.crash.story import Author, Story
from tests.acceptance.crash.wishes import AMOUNT, CLERKS, GATED, PEOPLE, answer_to, done
from tests.sim import agent
from tests.support import world as door

if TYPE_CHECKING:
    from tests.sim.world import World

CANCELLED, SAME_SESSION, EARLY = 0.12, 0.3, 0.5  # shares: of the stories, of those behind another, of the signals
ANSWERERS = [name for name, group in PEOPLE.items() if group == CLERKS]
AGAIN_S = 5.0  # until the next try to say what became of an effect


class Site:
    def __init__(self, world: World) -> None:
        self._world = world
        self._later = world.later
        self._random = world.random
        self.stories: dict[str, Story] = {}
        self.cancelled: set[str] = set()
        self._retried: set[UUID] = set()  # that wait for it
        self._session: Any = None
        author = Author(self._random, [each.name for each in agent.TOOLS])
        for _ in range(self._random.choice((1, 1, 1, 2))):
            story = author.story(depth=1, turns=self._random.choice((1, 1, 1, 2)))
            self._later("submit", partial(self._submit, story))

    def _submit(self, story: Story) -> None:
        session = self._session if self._random.random() < SAME_SESSION else None
        run = ravi_django.submit(agent.SIM, story.text, session=session)
        self._session = run.session_id
        self.stories[str(run.id)] = story
        for step in story.steps():
            if step.tool == "wait" and self._random.random() < EARLY:
                self.signal(str(run.id), f"go {step.number}")
        if self._random.random() < CANCELLED:
            self._later("cancel", partial(self._cancel, run), self._random.uniform(0, 4))

    def signal(self, run_id: str, name: str) -> None:
        """Some time; called again, again with the same key."""
        self._later(f"signal {name}", partial(self._signal, run_id, name))

    def _signal(self, run_id: str, name: str) -> None:
        try:
            ravi_django.signal(run_id, name, key=name)
        except ConflictError:  # it has ended
            return

    def _cancel(self, run: Run) -> None:
        self.cancelled.add(str(run.id))
        try:
            door.cancel(run.id, "nobody wants it")
        except ConflictError:  # it has ended
            return

    def will_retry(self, run_id: UUID) -> None:
        if run_id not in self._retried:
            self._retried.add(run_id)
            self._later("retry", partial(self._retry, run_id))

    def _retry(self, run_id: UUID) -> None:
        self._retried.remove(run_id)
        with suppress(IllegalTransitionError):  # a child is still being cancelled: again at the next look
            door.retry(run_id)

    # --------------------------------------------------------------------------------------------- people

    def opened(self, request: HumanRequest, **_: Any) -> None:
        """A receiver of `request_opened`: two people answer, or one does."""
        if request.kind == "uncertain":
            self._later("decide", partial(self._decide, request.id))
        elif (answer := answer_to(request)) is not None:
            for name in self._random.sample(ANSWERERS, self._random.choice((1, 2))):
                self._later(f"{name} answers", partial(self._answer, request.id, answer, name))

    def _answer(self, request: Any, answer: dict[str, Any], name: str) -> None:
        said = {"request": str(request), "by": name}
        try:
            door.answer(request, **answer, by=people()[name])
        except KernelError as error:  # another was first, or the run has ended
            agent.votes.append({"kind": "refused", "error": str(error), **said})
        else:
            agent.votes.append({"kind": "answered", **said})

    def _decide(self, request_id: Any) -> None:
        """Somebody looks what became of an uncertain effect."""
        request = HumanRequest.objects.get(id=request_id)
        if request.status != HumanRequest.Status.PENDING:
            return
        tool, number = request.tool, request.arguments["number"]
        happened = any(
            (line["kind"], line["run"], line["number"]) == (tool, str(request.run_id), number) for line in agent.ledger
        )
        try:
            if happened:
                door.human_resolve(request_id, "happened", result=_said(tool, request.arguments))
            else:
                door.human_resolve(request_id, "run_again")
        except KernelError:  # not yet: the call may still be under way
            self._later("decide", partial(self._decide, request_id), AGAIN_S)


def _said(tool: str, arguments: dict[str, Any]) -> str:
    number = arguments["number"]
    return done(tool, number, arguments.get("amount", AMOUNT)) if tool in GATED else f"{tool} {number}"


@cache
def people() -> dict[str, User]:
    """Those of the database, by name."""
    return {user.username: user for user in User.objects.filter(username__in=PEOPLE)}
