"""`manage.py ravi_answer ID …`: decide on a request from a terminal."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ravi_django.kernel import KernelError
from ravi_django.models import HumanRequest
from ravi_django.runtime import human


class Command(BaseCommand):
    help = (
        "Say what became of an effect that may or may not have happened: --happened (with its result), --run-again or "
        "--fail. The first answer wins. Exit status 1 when it was not this one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("request", metavar="ID", help="of the request, as ravi_requests lists it")
        outcome = parser.add_mutually_exclusive_group(required=True)
        outcome.add_argument("--happened", metavar="RESULT", help="it did: its result, text or JSON")
        outcome.add_argument("--run-again", action="store_true", help="it did not: call the tool again")
        outcome.add_argument("--fail", action="store_true", help="fail the run")
        parser.add_argument("--user", metavar="NAME", help="who decides")
        parser.add_argument("--reason", default="")

    def handle(self, *args: Any, request: str, happened: str | None, **options: Any) -> None:
        outcome = "happened" if happened is not None else "run_again" if options["run_again"] else "fail"
        result = None if happened is None else _value(happened)
        try:
            if not HumanRequest.objects.filter(id=request).exists():
                raise CommandError(f"there is no request {request}")
            run_id = human.resolve(request, outcome, result=result, reason=options["reason"], by=_user(options["user"]))
        except ValidationError:
            raise CommandError(f"{request!r} is no request's id") from None
        except KernelError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"ravi_answer: {outcome}; run {run_id} goes on")


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
