"""Libraries for OpenAI's APIs, each at its defaults, converse with the site. `make test-clients` installs them
into environments of their own: libraries that need other versions of `openai` are in another one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ravi_django.kernel import TextBlock
from ravi_django.models import Run, Session
from ravi_django.testing import ScriptedModel
from tests.acceptance.api.api_support import AGENT, PAID, SCRIPT, make_agent
from tests.support import world
from tests.support.patience import BOUND_S, seconds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("payers"), pytest.mark.full]
ROOT = Path(__file__).resolve().parents[3]
CLIENTS = ROOT / "tests/clients"
OPENAI3 = ["openai", "litellm", "langchain", "openai_agents", "pydantic_ai", "llm"]
OPENAI2 = ["openai", "llama_index"]
NODE = ["openai", "aiSdk", "aiSdkCompatible"]


def say(group: str, client: str, server: str, key: str, folder: Path) -> dict[str, Any]:
    """What the client saw: tests/clients/python/say.py names it."""
    if group == "node":
        program, script = shutil.which("node"), CLIENTS / "node/say.mjs"
        is_there = bool(program) and (script.parent / "node_modules").exists()
    else:
        program, script = f"{ROOT}/.cache/clients-{group}/bin/python", CLIENTS / "python/say.py"
        is_there = Path(program).exists()
    if not program or not is_there:
        pytest.skip(f"{client} is missing: make test-clients installs it")
    of_a_person = {"PATH": os.environ["PATH"], "HOME": str(folder), "LLM_USER_PATH": str(folder)}
    done = subprocess.run(
        [program, script, client, f"{server}/ravi/v1", key],
        env={**of_a_person, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert done.returncode == 0, done.stderr
    saw: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # litellm prints too
    return saw


def runs() -> Counter[str]:
    return Counter(Run.objects.values_list("agent", flat=True))


@pytest.mark.parametrize(
    ("group", "client"),
    [
        (group, name)
        for group, names in {"openai3": OPENAI3, "openai2": OPENAI2, "node": NODE}.items()
        for name in names
    ],
)
def test_a_client_converses_answers_shows_an_error_stops_and_retries(
    server: str, key: str, worker: None, tmp_path: Path, group: str, client: str
) -> None:
    model = ScriptedModel([[TextBlock(text="I look."), SCRIPT[0]], "It is 42."], chunk="words", delay=seconds(1.5))
    world.register(make_agent("slow", model), replace=True)

    saw = say(group, client, server, key, tmp_path)

    assert (saw["first"], saw["second"], saw["answered"]) == ("It is 42.", "It is 42.", "done")
    assert (saw["asked"], PAID) == (["approval", "approval"], [5, 6])
    assert "no such model" in saw["error"] and saw["cut"] in "I look." and saw["again"].endswith("It is 42.")
    assert runs() == {AGENT: 2, "react/payer": 1, "react/broken": 1, "react/slow": 1}
    assert Session.objects.count() == 4


def test_instructor_reads_objects_of_a_typed_agent(server: str, key: str, worker: None, tmp_path: Path) -> None:
    saw = say("openai2", "instructor", server, key, tmp_path)

    assert saw["first"] == saw["second"] == saw["again"] == '{"people":3}' and "tools" in saw["error"]
    assert runs() == {"react/typed": 3} and Session.objects.count() == 2
