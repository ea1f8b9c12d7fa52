"""Made-up requests for every operation of `schema/`. None gets a 500, or a status that the schema does not name."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from rest_framework.authtoken.models import Token
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import status_code_conformance

import ravi_django
from tests.acceptance.api.api_support import AGENT, client_of
from tests.support import world
from tests.support.asked import asked_by

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.full]
EXAMPLES = 3  # an operation and mode

quick = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_no_request_gets_an_undocumented_status(root: Any, user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "dispatch_send")
    run = ravi_django.submit(AGENT, "hi", user=user)
    follow, _ = ravi_django.follow(AGENT, "news/sport", user=user)
    ids = {"run": run.id, "session": run.session_id, "request": asked_by(run).id, "follow": follow.id}
    tokens = [f"Token {Token.objects.create(user=who).key}" for who in (root, user)]
    schema = schemathesis.openapi.from_dict(client_of(root).get("/ravi/schema/").json())
    schema.app = get_wsgi_application()

    faults = []
    for operation in (found.ok() for found in schema.get_all_operations()):
        row = ids.get(operation.path.removeprefix("/ravi/").partition("s/")[0])
        for mode in GenerationMode:
            try:
                made_up(operation, mode, row, tokens)
            except Unsatisfiable:  # an operation that nothing can be wrong about
                assert mode is GenerationMode.NEGATIVE, operation.label
            except BaseExceptionGroup as error:
                faults.append(f"{operation.label}: {error.exceptions}")

    assert not faults, "\n".join(faults)


def made_up(operation: Any, mode: GenerationMode, row: Any, tokens: list[str]) -> None:
    """Send examples of one operation: with the id of `row` and with another, for each user."""
    by_turns = cycle(product(tokens, [row is not None, False]))

    @quick
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        token, is_real = next(by_turns)
        if is_real and "id" in case.path_parameters:
            case.path_parameters["id"] = str(row)
        response = case.call(headers={"Authorization": token})
        assert response.status_code != 500  # it is documented
        case.validate_response(response, checks=[status_code_conformance])

    check()
