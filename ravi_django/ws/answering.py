"""A person's answer that comes over a socket."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ravi_django.kernel import ConflictError
from ravi_django.models import HumanRequest
from ravi_django.runtime.people import answers
from ravi_django.runtime.people.answers import Given
from ravi_django.runtime.runs import hints
from ravi_django.runtime.runs.signals import wake
from ravi_django.ws.commands import Answer


class Answering:
    """`answers.answer`, for `readers().call`: that repeats a call whose connection broke, and such a call may have been
    committed. Its own answer is no conflict, then."""

    def __init__(self, answer: Answer, user: Any) -> None:
        self._answer, self._user = answer, user
        self._tries = 0

    def __call__(self) -> UUID:
        """Returns the run's id. Raises what `answers.answer` raises."""
        self._tries += 1
        said = self._answer
        try:
            return answers.answer(said.request, said.action, by=self._user, **said.given())
        except ConflictError:
            if self._tries > 1 and (run_id := self._committed()) is not None:
                hints.on_commit(run_id, wake)  # which the broken connection may have cut off
                return run_id
            raise

    def _committed(self) -> UUID | None:
        """The run, if the answer that the row has is this one."""
        row = answers.find(self._answer.request)
        if row.status != HumanRequest.Status.ANSWERED or row.answered_by_id != self._user.pk:
            return None
        kept = answers.checked(row, Given(action=self._answer.action, **self._kept()))
        mine = all((row.answer or {}).get(name) == value for name, value in kept.items())
        return row.run_id if mine else None

    def _kept(self) -> dict[str, Any]:
        return {name: value for name, value in self._answer.given().items() if name != "version"}
