"""`/ws/ravi/runs/{id}/?after=N`: one run tree, whichever of its runs is named."""

from __future__ import annotations

from uuid import UUID

from ravi_django.models import Run
from ravi_django.runtime.db.threads import readers
from ravi_django.ws.access import NOT_FOUND, Refused, uuid_of
from ravi_django.ws.consumer import StreamConsumer


class RunConsumer(StreamConsumer):
    """Every frame above `after`, then 1000 after `stream.done`. `cancel` is for the run that the address names,
    `message` goes to the agent at the tree's root, in its session."""

    async def find(self) -> None:
        run_id = uuid_of(self.scope["url_route"]["kwargs"]["id"])
        self.run = self.reads = await readers().call(self._lookup, run_id)

    def _lookup(self, run_id: UUID) -> Run:
        run: Run | None = Run.objects.for_user(self.user).select_related("root").filter(id=run_id).first()
        if run is None:
            raise Refused(NOT_FOUND, "there is no such run of yours")
        return run

    async def stream(self) -> None:
        await self.follow(self.run.tree_id, self.after)

    def cancelled(self) -> UUID:
        return self.run.id

    def addressed(self) -> tuple[str, UUID]:
        root = self.run.root or self.run
        return root.agent, root.session_id
