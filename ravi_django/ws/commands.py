"""The frames that a client may send: one JSON object a frame, `{"type": …}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ravi_django.conf import conf
from ravi_django.kernel import ConflictError, InputTooLargeError, InvalidInputError
from ravi_django.kernel.json_values import read_json
from ravi_django.models import HumanRequest
from ravi_django.people import answers
from ravi_django.people.answers import AnswerInput
from ravi_django.runs import hints
from ravi_django.runs.signals import wake
from ravi_django.services.problems import problem_of

ENVELOPE_BYTES = 1024  # of a frame, besides its text


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Cancel(_Command):
    """Request the run's cancellation; the answer is `accepted`."""

    type: Literal["cancel"]


class Say(_Command):
    """A message to the agent, `text` or content blocks: a new run in the session, or as `on_busy` says; the answer is
    `accepted` with its id."""

    type: Literal["message"]
    text: str | None = None
    input: list[dict[str, Any]] | None = None
    on_busy: Literal["enqueue", "steer", "interrupt", "reject"] | None = None


class Answer(_Command):
    """A decision on a request, as in `POST requests/{id}/answer/`; the answer is `accepted` with the request and its
    run. null means absent."""

    type: Literal["answer"]
    request: str
    action: str
    text: str | None = None
    values: dict[str, str] | None = None
    arguments: dict[str, Any] | None = None
    outcome: str | None = None
    result: Any = None
    reason: str | None = None
    sticky: bool | None = None
    version: int | None = None

    def as_arguments(self) -> dict[str, Any]:
        """The arguments of `answers.answer` besides the request and the action."""
        names = Answer.model_fields.keys() - {"type", "request", "action"}
        return {name: value for name in names if (value := getattr(self, name)) is not None}


Command = Cancel | Say | Answer

_commands: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="type")])


def read(text: str | None, binary: bytes | None) -> Command:
    """The command in a frame. Raises InvalidInputError, InputTooLargeError."""
    if text is None:
        raise InvalidInputError("frames are JSON text, not binary")
    # JSON may encode a character as six.
    if len(text) > 6 * conf.MAX_INPUT_BYTES + ENVELOPE_BYTES:
        raise InputTooLargeError(f"the frame is too long: a message has at most {conf.MAX_INPUT_BYTES} bytes")
    try:
        command = _commands.validate_python(read_json(text, "frame"))
    except ValidationError as error:
        raise _complaint(error) from None
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"the frame is not JSON: {error}") from None
    if isinstance(command, Say) and (command.text is None) is (command.input is None):
        raise InvalidInputError("a message has either text or input", field="text")
    return command


def _complaint(error: ValidationError) -> InvalidInputError:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if problem["type"].startswith("union_tag"):
        return InvalidInputError('a frame has a type: "answer", "cancel" or "message"', field="type")
    path = ".".join(str(part) for part in problem["loc"][1:])
    return InvalidInputError(f"{path}: {problem['msg']}" if path else problem["msg"], field=path or None)


def error_frame(error: Exception) -> dict[str, Any]:
    """An error as in REST, with `retry_after` in seconds. It has no `seq`, because it is not a part of the stream."""
    problem = problem_of(error)
    wait = {"retry_after": int(problem.headers["Retry-After"])} if "Retry-After" in problem.headers else {}
    return {"type": "error", **problem.body()["error"], **wait}


class Answering:
    """`answers.answer` for `readers().call`, which repeats a call after a lost connection. The first try may have been
    committed: then the conflict with this same answer is a success."""

    def __init__(self, answer: Answer, user: Any) -> None:
        self._answer, self._user = answer, user
        self._tries = 0

    def __call__(self) -> UUID:
        """Returns the run's id. Raises what `answers.answer` raises."""
        self._tries += 1
        answer = self._answer
        try:
            return answers.answer(answer.request, answer.action, by=self._user, **answer.as_arguments())
        except ConflictError:
            if self._tries > 1 and (run_id := self._committed()) is not None:
                hints.on_commit(run_id, wake)  # the lost connection may have prevented this
                return run_id
            raise

    def _committed(self) -> UUID | None:
        """The run, if the row has this answer."""
        row = answers.find(self._answer.request)
        if row.status != HumanRequest.Status.ANSWERED or row.answered_by_id != self._user.pk:
            return None
        arguments = {name: value for name, value in self._answer.as_arguments().items() if name != "version"}
        checked = answers.checked(row, AnswerInput(action=self._answer.action, **arguments))
        is_same = all((row.answer or {}).get(name) == value for name, value in checked.items())
        return row.run_id if is_same else None
