"""`manage.py ravi_answer ID …`: decide on a request from a terminal."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ravi_django.kernel import KernelError
from ravi_django.runtime import human


class Command(BaseCommand):
    help = (
        'Answer a question (ID answer "text"), skip it (ID skip) or cancel it (ID cancel). Say what became of an '
        "effect that may or may not have happened: --happened (with its result), --run-again or --fail. The first "
        "answer wins. Exit status 1 when it was not this one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("request", metavar="ID", help="of the request, as ravi_requests lists it")
        parser.add_argument("action", nargs="?", choices=human.ACTIONS, help="what becomes of a question")
        parser.add_argument("text", nargs="?", default="", help="of the answer")
        outcome = parser.add_mutually_exclusive_group()
        outcome.add_argument("--happened", metavar="RESULT", help="it did: its result, text or JSON")
        outcome.add_argument("--run-again", action="store_true", help="it did not: call the tool again")
        outcome.add_argument("--fail", action="store_true", help="fail the run")
        parser.add_argument("--user", metavar="NAME", help="who decides")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, request: str, action: str | None, **options: Any) -> None:
        outcome = _outcome(options)
        if (action is None) == (outcome is None):
            raise CommandError(
                f"say what becomes of it: {', '.join(human.ACTIONS)} for a question; --happened, --run-again or --fail "
                "for an effect that may have happened; not both"
            )
        said = {"reason": options["reason"], "by": _user(options["user"])}
        try:
            if action is not None:
                run_id = human.answer(request, action, text=options["text"], **said)
            else:
                result = None if outcome != "happened" else _value(options["happened"])
                run_id = human.resolve(request, str(outcome), result=result, **said)
        except KernelError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"ravi_answer: {action or outcome}; run {run_id} goes on")


def _outcome(options: dict[str, Any]) -> str | None:
    if options["happened"] is not None:
        return "happened"
    return "run_again" if options["run_again"] else "fail" if options["fail"] else None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _user(name: str | None) -> Any:
    if name is None:
        return None
    user = get_user_model().objects.filter(**{get_user_model().USERNAME_FIELD: name}).first()
    if user is None:
        raise CommandError(f"there is no user {name!r}")
    return user
