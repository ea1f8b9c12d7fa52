"""`manage.py ravi_answer ID …`: decide on a request from a terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from pydantic_core import from_json

from ravi_django.kernel import InvalidInputError, KernelError
from ravi_django.management.people import user_named
from ravi_django.people import answers
from ravi_django.people.answers import EVERY_ACTION

BAD_USAGE = 2  # as in argparse


class Command(BaseCommand):
    help = (
        'Answer a question (ID answer "text"), skip it (ID skip) or cancel it (ID cancel). Decide on a tool call: '
        "ID approve, ID deny --reason WHY, or ID edit --arguments JSON, which approves other arguments. Resolve an "
        "uncertain tool call: --happened (with its result), --run-again or --fail. The first answer counts. Exit "
        "status 1 if another answer was first, 2 if the answer is not valid for the request."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("request", metavar="ID", help="the request's id, as ravi_requests lists it")
        parser.add_argument("action", nargs="?", choices=EVERY_ACTION, help="the decision")
        parser.add_argument("text", nargs="?", default="", help="the text of the answer")
        parser.add_argument("--value", metavar="KEY=TEXT", action="append", help="one of several answers to a tool")
        parser.add_argument(
            "--arguments", metavar="JSON", help="for edit: the tool's arguments, or a budget's new limits, by name"
        )
        parser.add_argument(
            "--sticky", action="store_true", help="for approve and deny: also for this tool's next calls in the session"
        )
        outcome = parser.add_mutually_exclusive_group()
        outcome.add_argument("--happened", metavar="RESULT", help="the call happened: its result, text or JSON")
        outcome.add_argument("--run-again", action="store_true", help="the call did not happen: make it again")
        outcome.add_argument("--fail", action="store_true", help="fail the run")
        parser.add_argument("--user", metavar="NAME", help="decide as this user; else as the site's operator")
        parser.add_argument("--reason", default="", help="the reason; the model reads that of a denial")

    def handle(self, *args: Any, request: str, action: str | None, **options: Any) -> None:
        outcome = _outcome(options)
        _check(action, outcome)
        try:
            run_id = answers.answer(
                request,
                action or "resolve",
                text=options["text"],
                values=_values(options["value"]),
                arguments=_arguments(options["arguments"]),
                outcome=outcome,
                result=None if outcome != "happened" else _value(options["happened"]),
                sticky=options["sticky"],
                reason=options["reason"],
                by=user_named(options["user"], BAD_USAGE),
            )
        except InvalidInputError as error:
            raise CommandError(str(error), returncode=BAD_USAGE) from error
        except KernelError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"ravi_answer: {outcome or action}; run {run_id} continues")


def _check(action: str | None, outcome: str | None) -> None:
    if (outcome is None) == (action in (None, "resolve")):
        actions = ", ".join(one for one in EVERY_ACTION if one != "resolve")
        message = f"name an action: {actions}; or, for an uncertain call, --happened, --run-again or --fail; not both"
        raise CommandError(message, returncode=BAD_USAGE)


def _values(texts: list[str] | None) -> dict[str, str] | None:
    if texts is None:
        return None
    pairs = [text.partition("=") for text in texts]
    if wrong := next((text for text, (_, equals, _) in zip(texts, pairs, strict=True) if not equals), None):
        raise CommandError(f"--value must be KEY=TEXT, not {wrong!r}", returncode=BAD_USAGE)
    return {key: text for key, _, text in pairs}


def _arguments(text: str | None) -> Any:
    try:
        return None if text is None else from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise CommandError(f"--arguments must be JSON: {error}", returncode=BAD_USAGE) from None


def _outcome(options: dict[str, Any]) -> str | None:
    if options["happened"] is not None:
        return "happened"
    return "run_again" if options["run_again"] else "fail" if options["fail"] else None


def _value(text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
