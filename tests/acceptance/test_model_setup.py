"""A reader's first mistakes with a model, on README's own site: no key, a wrong name, a page without its script."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project.process import wait_until
from project.services import free_port, port_is_free
from tests.support import browser, forks
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.patience import BOUND_S, seconds

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```\w+\n(?:# |<!-- )(shop/[\w/]+\.\w+)(?: -->)?\n(.*?)```", re.DOTALL)
QUICKSTART = README[README.index("startproject") : README.index("runserver", README.index("startproject"))]
MODEL = re.compile(r'model="[^"]+"')
KEY = "OPENAI_API_KEY"
ANSWER = "Order 7 left the warehouse."


class Shop:
    """README's first site, a copy of one that is migrated."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.server = folder / "shop", free_port(), None
        self.env = {"HOME": os.environ["HOME"], "PYTHONPATH": str(ROOT), "DJANGO_SUPERUSER_PASSWORD": "ada"}

    def make(self) -> None:
        forks.run(["-m", "django", "startproject", "shop"], cwd=self.folder.parent, env=self.env, check=True)
        for file, text in BLOCK.findall(QUICKSTART):
            (self.folder / file).parent.mkdir(exist_ok=True)
            with (self.folder / file).open("a") as opened:
                opened.write(f"\n{text}")
        self.manage("migrate")
        self.manage("createsuperuser", "--no-input", "--username=ada", "--email=ada@example.com")

    def use(self, model: str) -> None:
        file = self.folder / "shop/agents/__init__.py"
        file.write_text(MODEL.sub(f'model="{model}"', file.read_text()))

    def manage(self, *command: str) -> subprocess.CompletedProcess[str]:
        options: Any = {"cwd": self.folder, "env": self.env, "capture_output": True, "text": True}
        return forks.run(["manage.py", *command], timeout=BOUND_S, **options)

    def start(self, *options: str, forked: bool = True, **env: str) -> None:
        """A fork has imported litellm."""
        command = ["manage.py", "runserver", f"127.0.0.1:{self.port}", *options]
        with self.log.open("wb") as log:
            more: Any = {"cwd": self.folder, "env": self.env | env, "stdout": log, "stderr": log}
            self.server = (
                forks.Popen(command, **more)
                if forked
                else subprocess.Popen([sys.executable, *command], start_new_session=True, **more)
            )
        assert wait_until(lambda: not port_is_free("127.0.0.1", self.port), BOUND_S)

    def stop(self) -> None:
        if self.server is not None:
            os.killpg(self.server.pid, signal.SIGINT)
            self.server.wait(seconds(20))
            self.server = None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def logged(self, text: str) -> int:
        return sum(line.startswith(text) for line in self.log.read_text().splitlines())

    def chat(self, running: Any, **options: Any) -> Any:
        page = browser.new_page(running, f"http://127.0.0.1:{self.port}", **options)
        page.goto("/ravi/")
        page.fill("[name=username]", "ada")
        page.fill("[name=password]", "ada")
        page.click("[type=submit]")
        return page


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shop = Shop(tmp_path_factory.mktemp("made"))
    shop.make()
    return shop.folder


@pytest.fixture
def shop(tmp_path: Path, made: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    shutil.copytree(made, shop.folder)
    yield shop
    shop.stop()


def ask(page: Any, text: str) -> None:
    page.wait_for_selector("ravi-chat:defined")
    page.fill("#text", text)
    page.press("#text", "Enter")


def test_check_and_doctor_find_nothing_wrong_while_the_readmes_site_runs(shop) -> None:
    shop.use("gpt-4o-mini")
    shop.start("--noreload", **{KEY: "key-of-the-test"})  # this process alone has it

    done: list[Any] = []  # the first sweep may not have ended
    assert wait_until(lambda: done.append(shop.manage("ravi_doctor")) or not done[-1].returncode, BOUND_S), done[-1]
    assert "warnings=0 errors=0" in done[-1].stdout
    assert "; no broker; agents: react/helper; " in shop.log.read_text()
    check = shop.manage("check")
    assert check.returncode == 0
    assert set(re.findall(r"ravi\.\w+", check.stderr)) == {"ravi.I003"}, "the key that this shell lacks"

    shop.stop()
    alone = shop.manage("ravi_doctor")
    assert alone.returncode == 1
    assert "error    worker: no worker is alive" in alone.stdout
    assert "fix: manage.py ravi_worker, or manage.py runserver" in alone.stdout
    assert f"fix: set {KEY} in the environment" in alone.stdout


def test_a_wrong_name_is_corrected_by_check_doctor_and_log(shop) -> None:
    shop.use("gpt4o-mini")
    text = "Unknown model 'gpt4o-mini'. Did you mean 'gpt-4o-mini'?"

    assert f"(ravi.I002) {text} (react/helper)" in shop.manage("check").stderr
    assert "error    model: Unknown model 'gpt4o-mini': react/helper\n         fix: Did you mean" in (
        shop.manage("ravi_doctor").stdout
    )
    asked = shop.manage("ravi_run", "react/helper", "Where is order 7?").stderr
    assert asked.count(text) == 1 and "Traceback" not in asked
    shop.start("--noreload")
    assert wait_until(lambda: shop.logged(text), BOUND_S)


def test_a_missing_key_is_logged_once_and_fails_in_a_red_box_of_the_chat(shop, chromium) -> None:
    shop.use("gpt-4o-mini")
    shop.start("--noreload")
    text = f"model gpt-4o-mini has no API key: set {KEY}"
    with chromium() as running:
        page = shop.chat(running)
        ask(page, "Where is order 7?")
        page.wait_for_selector(f".answer .ravi-error:has-text('{text}')")
        for _, _ in browser.looks(page, 390, 1360, part="ravi-chat"):  # also the contrast
            border = page.eval_on_selector(".answer .ravi-error", "box => getComputedStyle(box).borderLeftColor")
            red, green, blue = map(int, re.findall(r"\d+", border)[:3])
            assert red > max(green, blue) + 80
    assert shop.logged(text) == 1


def test_the_page_says_that_the_model_library_starts_and_later_answers_at_once(shop, chromium) -> None:
    shop.use("gpt-4o-mini")
    with OpenAIServer(Reply(text=ANSWER)) as model, chromium() as running:
        env = {KEY: "key-of-the-test", "OPENAI_API_BASE": model.base_url}
        shop.start(forked=False, **env)  # reloads: it imports nothing yet
        page = shop.chat(running)
        ask(page, "Where is order 7?")
        page.wait_for_selector("#status:text-is('Starting the model library')")
        page.wait_for_selector(f".answer .prose:has-text('{ANSWER}')", timeout=BOUND_S * 1000)
        page.wait_for_selector("#status:text-is('Done')")
        shop.stop()

        shop.start("--noreload", forked=False, **env)
        maps = Path(f"/proc/{shop.server.pid}/maps")  # litellm's import ends with tokenizers
        assert wait_until(lambda: "tiktoken" in maps.read_text(), BOUND_S)
        page.goto("/ravi/")
        ask(page, "Where is order 8?")
        page.wait_for_selector(f".answer:last-child .prose:has-text('{ANSWER.split()[0]}')")


def test_a_page_whose_script_does_not_load_says_so(shop, chromium) -> None:
    shop.use("rehearsal")
    shop.start("--noreload")
    with chromium() as running:
        page = shop.chat(running)
        ask(page, "Where is order 7?")
        page.wait_for_selector(".answer .tool .name:has-text('order_status')")
        page.wait_for_selector(".answer .prose:has-text('Order 7 of ada left the warehouse')")
        run = page.get_attribute(".foot a[href*='/ui/runs/']", "href")
        for address, script in (("/ravi/ui/chat/", "**/talks.js"), (run, "**/run.js")):
            page.goto(address)
            page.wait_for_selector("#unloaded", state="detached")
            page.route(script, lambda route: route.abort())
            page.goto(address)
            page.wait_for_selector("#unloaded >> text=The script of this page has not loaded")
            for _, width in browser.looks(page, 390, 1360, part="#unloaded"):
                box = page.locator("#unloaded").bounding_box()
                assert box["x"] >= 0 and box["x"] + box["width"] <= width
            page.unroute(script)
        page.route("**/static/**", lambda route: route.abort())  # nothing serves static files: no styles either
        page.goto("/ravi/ui/chat/")
        assert page.is_visible("#unloaded")
