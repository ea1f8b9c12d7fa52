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
        parser.add_argument("action", nargs="?", choices=(*human.ACTIONS, *human.DECISIONS), help="what becomes of it")
        parser.add_argument("text", nargs="?", default="", help="of the answer")
        parser.add_argument("--value", metavar="KEY=TEXT", action="append", help="one of several answers to a tool")
        parser.add_argument("--arguments", metavar="JSON", help="of edit: the new limits, by name")
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
                given = {"text": options["text"], "values": _values(options["value"])}
                run_id = human.answer(request, action, **given, arguments=_arguments(options["arguments"]), **said)
            else:
                result = None if outcome != "happened" else _value(options["happened"])
                run_id = human.resolve(request, str(outcome), result=result, **said)
        except KernelError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"ravi_answer: {action or outcome}; run {run_id} goes on")


def _values(given: list[str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    pairs = [text.partition("=") for text in given]
    if wrong := next((text for text, (_, equals, _) in zip(given, pairs, strict=True) if not equals), None):
        raise CommandError(f"--value is KEY=TEXT, not {wrong!r}")
    return {key: text for key, _, text in pairs}


def _arguments(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise CommandError(f"--arguments is JSON: {error}") from None


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
