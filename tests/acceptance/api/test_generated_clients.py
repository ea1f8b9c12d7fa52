"""Clients generated from `schema/`: each compiles, uploads a file, submits a run, answers a request, reads the result.
They have environments of their own, which `make test-clients` installs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.api.api_support import PAID, client_of
from tests.support.patience import BOUND_S

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("payers"), pytest.mark.full]
ROOT = Path(__file__).resolve().parents[3]
SOURCES, PYTHON = ROOT / "tests/clients/generated", ROOT / ".cache/generated-clients/bin"


def played(steps: list[list[Any]], folder: Path, user: Any, *site: str) -> Any:
    """The output of the last step, a program that gets the address and the key of the site."""
    for source in SOURCES.glob("[a-z]*.*"):
        shutil.copy(source, folder)  # Node and Python import from beside the file itself
    (folder / "node_modules").symlink_to(SOURCES / "node_modules")
    (folder / "schema.json").write_text(client_of(user).get("/ravi/schema/").content.decode())
    for step in (*steps[:-1], [*steps[-1], *site]):
        done = subprocess.run(step, cwd=folder, capture_output=True, text=True, timeout=BOUND_S)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stdout, done.stdout  # the generator has left something out
    return json.loads(done.stdout)


def check(result: dict[str, Any]) -> None:
    assert (result["text"], result["output"], result["models"]) == ("three invoices", "done", 200)
    assert set(result["waits"]) <= {"request"} and sorted(PAID) == [5, 6]


def test_openapi_python_client(server: str, key: str, worker: None, user: Any, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("openapi-python-client is missing: make test-clients installs it")
    generate = [PYTHON / "openapi-python-client", "generate", "--path", "schema.json", "--output-path", "site_api"]
    compiled = [PYTHON / "python", "-m", "compileall", "-q", "site_api"]
    steps = [[*generate, "--meta", "none"], compiled, [PYTHON / "python", "client.py"]]

    check(played(steps, tmp_path, user, server, key))


def test_openapi_typescript(server: str, key: str, worker: None, user: Any, tmp_path: Path) -> None:
    node, programs = shutil.which("node"), SOURCES / "node_modules/.bin"
    if node is None or not programs.exists():
        pytest.skip("openapi-typescript is missing: make test-clients installs it where Node 20 or newer is")
    generate = [programs / "openapi-typescript", "schema.json", "-o", "schema.ts"]
    steps = [generate, [programs / "tsc", "-p", "."], [node, "client.js"]]

    check(played(steps, tmp_path, user, server, key))
