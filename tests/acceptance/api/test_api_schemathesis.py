"""Made-up requests for every operation of `schema/`. None gets a 500, or a status or a body that the schema does not
name. The server takes what the schema allows, and refuses what it refuses, but for the EXCEPTIONS."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import cycle, product
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from rest_framework.authtoken.models import Token
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    RejectedPositiveData,
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
)

import ravi_django
from tests.acceptance.api.api_support import AGENT, client_of
from tests.support import world
from tests.support.asked import asked_by
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.django_db(transaction=True)
ID = re.compile("[0-9a-f-]{36}")
EXAMPLES = 4  # of what the schema allows and of what it refuses, of each operation: some 400 requests
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    positive_data_acceptance,
    negative_data_rejection,
]
# What the schema allows and the server refuses: the operation and the field, and why the schema cannot say it.
EXCEPTIONS = {
    r"GET .* cursor": "only an answer has a cursor of its list",
    r".* (created_after|created_before|since|until|start_at)": "a time is later than 1970, a span at most 366 days",
    r"GET .*/topics/.* (topic|run)": "the source of `agent.progress` is a run, pages of `agent.stream` need one",
    r".* not_acceptable": "a WSGI server does not stream",
    r"POST .*/(fork|emit)/ (after_seq|text|data)": "one of two fields",
    r"POST .*/runs/(.*/fork/)? (input|client_tools.*)": "a content block has the fields of its type, as a JSON Schema",
    r"POST .*/(v1|agui)/.* (messages|input|resume|tools|context|conversation|threadId)\b.*": "types of other protocols",
    r"POST .*/v1/.* (instructions|response_format|text.*)": "depends on the settings or the agent",
    r"POST .*/v1/.* (n|functions|tool_choice|function_call|modalities|background)": "neutral values alone are possible",
    r"POST .*/files/ file": "the content decides on the type",
}


@pytest.mark.timeout(10 * BOUND_S)
def test_the_schema_is_what_the_server_does(root: Any, user: Any, monkeypatch: Any) -> None:
    world.silence(monkeypatch, "dispatch_send")
    run = ravi_django.submit(AGENT, "hi", user=user)
    follow, _ = ravi_django.follow(AGENT, "news/sport", user=user)
    ids = {"run": run.id, "session": run.session_id, "request": asked_by(run).id, "follow": follow.id}
    tokens = [f"Token {Token.objects.create(user=who).key}" for who in (root, user)]
    schema = schemathesis.openapi.from_dict(client_of(root).get("/ravi/schema/").json())
    schema.config.generation.update(allow_x00=False)  # PostgreSQL stores no NUL
    schema.app = get_wsgi_application()

    failures: list[str] = []
    for operation in (one.ok() for one in schema.get_all_operations()):
        row = ids.get(operation.path.removeprefix("/ravi/").partition("s/")[0])
        for mode in GenerationMode:
            with suppress(Unsatisfiable):  # an operation that nothing can be wrong about
                failures += made_up(operation, mode, row, tokens)

    assert not failures, "\n".join(dict.fromkeys(failures))
    assert len(EXCEPTIONS) <= 10


def made_up(operation: Any, mode: GenerationMode, row: Any, tokens: list[str]) -> list[str]:
    """Send examples of one operation: with the id of `row` and with another, for each user. Returns the failures."""
    by_turns = cycle(product(tokens, [row is not None, False]))
    failures = []

    @seed(45)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        token, is_real = next(by_turns)
        if is_real and ID.fullmatch(str(case.path_parameters.get("id"))):  # else the address is what is wrong
            case.path_parameters["id"] = str(row)
        if is_real and mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and case.body.get("agent"):
            case.body["agent"] = AGENT
        response = case.call(headers={"Authorization": token})
        assert response.status_code != 500  # it is documented
        try:
            case.validate_response(response, checks=CHECKS)
        except BaseExceptionGroup as group:
            for failure in group.exceptions:
                if not (isinstance(failure, RejectedPositiveData) and is_excepted(operation.label, response.json())):
                    request = f"{operation.label} {mode.name} {case.query} {case.body!r:.600}"
                    failures.append(f"{request}\n  {response.status_code} {response.text:.400}\n  {failure!s:.600}")

    check()
    return failures


def is_excepted(label: str, answer: dict[str, Any]) -> bool:
    error = answer["error"]
    at = error.get("field") or error.get("param") or error["code"]
    return any(re.fullmatch(pattern, f"{label} {at}") for pattern in EXCEPTIONS)
