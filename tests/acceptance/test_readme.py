"""README and docs/howto/deploy.md: their blocks are typed into one new project, and each agent is asked."""

from __future__ import annotations

import ast
import configparser
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from project.process import wait_until
from project.services import Valkey
from ravi_django.checks import SQLITE_LINE
from ravi_django.conf import DEFAULTS
from tests.support.browser import answered, ask, log_in, page_of_process
from tests.support.docs import ACCOUNT, Page, Reader, quickstart, with_real_model, write
from tests.support.openai_server import Body, OpenAIServer, Reply, tool_results
from tests.support.patience import BOUND_S

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

README, DEPLOY, PROCESSES = Page("README"), Page("deploy"), Page("processes")
MOST = 7  # actions to the first answer, after `pip install`
SERVER = os.environ.get("RAVI_TEST_POSTGRES", "")
PEOPLE = f"""
from django.contrib.auth.models import Group, User
fay = User.objects.create_user("fay", password={ACCOUNT["PASSWORD"]!r}, is_staff=True)
fay.groups.add(Group.objects.create(name="finance"))
Group.objects.create(name="directors")
"""
TRANSACTIONS = """
from django.contrib.auth.models import User
from django.db import transaction
from ravi_django.models import Run
from shop.orders import complain
ada, before = User.objects.get(username="ada"), Run.objects.count()
with transaction.atomic():
    complain(8, "is late", ada)
    transaction.set_rollback(True)
assert Run.objects.count() == before
with transaction.atomic():
    complain(7, "is late", ada)
"""
RETURNED = """
from ravi_django.models import Run
from shop.agents.parcels import parcel_returned
run = Run.objects.get(agent="shop/parcels")
parcel_returned(run.id, 7)
parcel_returned(run.id, 7)
print(run.id)
"""
SUBMITS_AND_ENDS = """
import time
from ravi_django import submit
run = submit("react/helper", "Where is order 7?")
while run.status != "running":
    time.sleep(0.05)
    run.refresh_from_db()
"""
HOME = """
from django.views.generic import TemplateView
urlpatterns += [path("", TemplateView.as_view(template_name="home.html"))]
"""


class Model(OpenAIServer):
    """Calls the agent's tool, then passes its result on."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.pauses = False  # after the first word of an answer, until `flows` is set

    def _reply(self, body: Body) -> Reply:
        (tool,) = (tool["function"]["name"] for tool in body["tools"])
        if not tool_results(body):
            arguments = {"refund": {"order_id": 7, "amount": 50}, "order_status": {"order_id": 7}}
            return Reply(tool_calls=((tool, arguments[tool]),))
        if self.pauses:
            self.flows.clear()
        return Reply(text=f"Answer: {body['messages'][-1]['content']}")


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as server:
        yield server


@pytest.fixture
def reader(tmp_path: Path, model: Model, request: pytest.FixtureRequest) -> Iterator[Reader]:
    reader = Reader(tmp_path, reloads="reload" in request.node.name, OPENAI_API_BASE=model.base_url)
    yield reader
    reader.close()


def asks_each_agent(reader: Reader, model: Model, page: Any, approver: Any) -> None:
    """`page` is ada's chat; the refund is approved in the admin by fay."""
    model.pauses = True
    ask(page, "react/helper", "Where is order 7?")
    page.wait_for_selector(".answer.live .prose:has-text('Answer:')")
    assert "this morning" not in page.inner_text(".answer .prose")  # the text streams
    model.pauses = False
    model.flows.set()
    answered(page, "Order 7 of ada left the warehouse this morning.")

    ask(page, "react/refunds", "Order 7 came broken: 50 back.")
    page.wait_for_selector(".request .state:has-text('finance')")
    assert page.locator(".request button").count() == 0  # four eyes
    log_in(approver, "/admin/login/?next=/admin/ravi/humanrequest/", "fay", ACCOUNT["PASSWORD"])
    approver.click("#result_list tbody a")
    approver.click("button[value=approve]")
    answered(page, "Paid back 50 for order 7.")

    ask(page, "shop/parcels", "I send order 7 back.")
    page.wait_for_selector("#status:has-text('ait')")
    run = reader.shell(RETURNED).split()[-1]
    page.wait_for_selector("#status:text-is('Done')")
    page.goto(f"/admin/ravi/run/{run}/change/")
    page.wait_for_selector(":text('Parcel 7 is back.')")


def test_the_readmes_blocks_become_a_site_whose_agents_answer(reader, model, chromium, capsys) -> None:
    started, steps = time.monotonic(), [step for block in quickstart() for step in block.steps]
    actions = [step for step in steps if not step.startswith("pip install")]

    reader.follow(quickstart())
    with chromium() as running:
        page = page_of_process(running, reader.url)
        log_in(page, "/ravi/", ACCOUNT["USERNAME"], ACCOUNT["PASSWORD"])
        ask(page, "react/helper", "Where is order 7?")
        answered(page, "Order 7 of ada left the warehouse this morning.")
        with capsys.disabled():
            spent = f"{time.monotonic() - started:.0f} s"
            print(f"\nREADME: {len(actions)} actions to the first answer, {spent}", flush=True)
        assert len(actions) <= MOST
        assert page.is_hidden("#banner")
        assert page.errors == page.console == []
    assert "/ws/" not in reader.log("runserver").read_text()
    reader.run("python manage.py check --fail-level WARNING")
    report = reader.run("python manage.py ravi_doctor")
    assert not re.search(r"^(error|warning) ", report, re.MULTILINE), report

    (first,) = (block for block in quickstart() if block.file == "shop/agents/__init__.py")
    write(reader.folder, with_real_model(first))
    rest = README.blocks[len(quickstart()) :]
    reader.follow([block for block in rest if block.file])
    (tag,) = (block.text for block in rest if block.language == "html")
    (reader.folder / "shop/templates").mkdir()
    (reader.folder / "shop/templates/home.html").write_text(f"<!doctype html>{tag}")
    with (reader.folder / "shop/urls.py").open("a") as urls:
        urls.write(HOME)
    reader.follow(rest[:1])
    reader.shell(PEOPLE)
    with chromium() as running:
        page, approver = (page_of_process(running, reader.url) for _ in range(2))
        log_in(page, "/ravi/", ACCOUNT["USERNAME"], ACCOUNT["PASSWORD"])
        asks_each_agent(reader, model, page, approver)
        reader.shell(TRANSACTIONS)
        page.goto("/")
        page.click("ravi-panel #open")
        page.wait_for_selector("ravi-panel ravi-chat:defined")
        assert page.errors == approver.errors == []
    assert wait_until(lambda: run_of(reader)[0] == "completed", BOUND_S)
    assert "Order 7 of ada" in run_of(reader)[2]


@pytest.mark.skipif(not SERVER, reason="needs its own PostgreSQL: DATABASE_URL was given, or this is SQLite")
def test_the_page_about_production_makes_the_same_site_run_in_workers(tmp_path, reader, model, chromium) -> None:
    server = urlsplit(SERVER)
    reader.env |= {"PGPORT": str(server.port), "DATABASE_PASSWORD": "of-the-test", "OPENAI_API_KEY": "key"}
    files = [block for block in README.blocks if block.file]
    startproject = [block for block in quickstart() if "startproject" in block.text]
    with Valkey(tmp_path / "valkey", fast=True) as valkey, psycopg.connect(SERVER, autocommit=True) as postgres:
        postgres.execute("CREATE ROLE shop LOGIN PASSWORD 'of-the-test'")
        postgres.execute("CREATE DATABASE shop OWNER shop")
        try:
            reader.follow([*startproject, *map(with_real_model, files)])
            address = valkey.url.removesuffix("/0")
            blocks = [block for block in DEPLOY.blocks if block.language in ("python", "sh")]
            reader.follow([replace(one, text=one.text.replace("redis://localhost:6379", address)) for one in blocks])
            reader.shell(PEOPLE)
            with chromium() as running:
                page, approver = (page_of_process(running, reader.url) for _ in range(2))
                log_in(page, "/ravi/", ACCOUNT["USERNAME"], ACCOUNT["PASSWORD"])
                asks_each_agent(reader, model, page, approver)
                assert page.errors == page.console == approver.errors == approver.console == []
            reader.run("python manage.py check --fail-level WARNING")
            report = reader.run("python manage.py ravi_doctor")
            assert not re.search(r"^(error|warning) ", report, re.MULTILINE), report
            reader.close()
            for name in ("worker", "beat", "uvicorn"):
                assert "Traceback" not in reader.log(name).read_text(), reader.log(name).read_text()
        finally:
            reader.close()
            postgres.execute("DROP DATABASE shop WITH (FORCE)")
            postgres.execute("DROP ROLE shop")


def run_of(reader: Reader) -> tuple[str, str, str]:
    """The newest run's status, worker and output."""
    with closing(sqlite3.connect(reader.folder / "db.sqlite3")) as connection:
        row = "SELECT status, lease_owner, output FROM ravi_run ORDER BY created_at DESC LIMIT 1"
        status, worker, output = connection.execute(row).fetchone()
    return status, worker, output or ""


def test_the_engine_starts_with_the_server_and_an_answer_goes_on_after_a_reload_and_after_a_kill(reader, model) -> None:
    *before, start = quickstart()
    reader.follow([with_real_model(block) for block in before])
    with (reader.folder / "shop/settings.py").open("a") as settings:
        settings.write('RAVI = {"LEASE_S": 3600}\n')  # no lease expires in this test
    reader.env["OPENAI_API_KEY"] = "key-of-the-test"
    reader.run("python manage.py migrate")
    model.pauses = True
    reader.shell(SUBMITS_AND_ENDS)
    assert run_of(reader)[:2] == ("pending", "")
    asked = len(model.requests)

    reader.follow([start])
    assert wait_until(lambda: run_of(reader)[0] == "running", BOUND_S)
    assert wait_until(lambda: len(model.requests) > asked, BOUND_S)  # the answer has started
    first = run_of(reader)[1]
    os.utime(reader.folder / "shop" / "agents" / "__init__.py")  # the server reloads
    assert wait_until(lambda: run_of(reader)[0] == "running" and run_of(reader)[1] != first, BOUND_S)
    second = run_of(reader)[1]
    reader.stop("runserver", by=signal.SIGKILL)
    reader.run("python manage.py runserver --noreload")
    assert wait_until(lambda: run_of(reader)[1] not in ("", first, second), BOUND_S)
    model.pauses = False
    model.flows.set()
    assert wait_until(lambda: run_of(reader)[0] == "completed", BOUND_S)
    assert "Order 7 of None left" in run_of(reader)[2]


@pytest.mark.gate
def test_the_readme_says_of_sqlite_what_the_check_says() -> None:
    (settings,) = (block.text for block in README.blocks if block.file == "shop/settings.py")

    assert ast.unparse(ast.parse(SQLITE_LINE)) in ast.unparse(ast.parse(settings))


@pytest.mark.gate
def test_supervisors_wait_longer_than_a_drain_and_start_what_the_pages_start() -> None:
    (grace,) = map(int, re.findall(r"stop_grace_period: (\d+)s", PROCESSES.text))
    (kubernetes,) = map(int, re.findall(r"terminationGracePeriodSeconds: (\d+)", PROCESSES.text))
    (production,) = (block for block in README.blocks if "celery" in block.text)
    typed = [step for block in DEPLOY.blocks if block.language == "sh" for step in block.steps]
    supervised = re.findall(r"(?:ExecStart=\S+/|command: )(celery .* worker .*)", PROCESSES.text)

    assert min(grace, kubernetes) > DEFAULTS["DRAIN_S"]
    assert production.steps == typed[-3:]
    assert set(supervised) == {production.steps[0]}


@pytest.mark.gate
def test_the_files_of_supervisors_are_whole_and_start_the_three_processes() -> None:
    started = []
    for text in re.findall(r"```ini\n(.*?)```", PROCESSES.text, re.DOTALL):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(text)
        assert unit["Install"]["WantedBy"] == "multi-user.target" and unit["Service"]["Restart"] == "always"
        assert unit["Service"]["WorkingDirectory"] == "/srv/shop"
        started.append(unit["Service"]["ExecStart"].removeprefix("/srv/shop/venv/bin/"))
    services = yaml.safe_load(PROCESSES.code("compose.yaml", "yaml"))["services"]
    assert all(one["build"] and one["env_file"] and one["restart"] == "always" for one in services.values())
    production = next(block for block in README.blocks if "celery" in block.text).steps
    for commands in (started, [one["command"] for one in services.values()]):
        assert [command.startswith(step) for command, step in zip(commands, production, strict=True)] == [True] * 3
