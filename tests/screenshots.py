"""The pictures of README and of the demo's page: a demo with a week of invented figures, and four pages in Chromium.

python -m tests.screenshots [folder]     docs/images by default
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from project.services import free_port
from tests.support.demo_process import ROOT, demo

SIZE = {"width": 1180, "height": 800}
AGENTS = {"react/assistant": 14, "orchestrator/team": 4, "react/storyteller": 5, "react/reporter": 2}  # runs an hour
HOURS = 7 * 24


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with site() as address, pages(address) as log_in:
        chat(log_in, folder)
        staff = log_in("admin")
        staff.goto("/admin/ravi/humanrequest/")
        staff.screenshot(path=folder / "inbox.png")
        staff.goto("/ravi/ui/dashboard/?days=7")
        staff.screenshot(path=folder / "dashboard.png")


def chat(log_in: Any, folder: Path) -> None:
    """An approved invoice, a second one that waits, and an answer while it is written; then the run of the team."""
    page, staff = log_in("demo"), log_in("admin")
    page.goto("/ravi/ui/chat/?agent=orchestrator/team")
    say(page, "Calculate 12 * (3 + 4), and write a note about it")
    page.locator(".answer .foot a").last.click()
    page.locator(".lane:not(.run):has-text('model')").last.locator("a").click()
    page.wait_for_selector("#detail .facts")
    page.set_viewport_size({**SIZE, "height": 900})
    page.screenshot(path=folder / "run.png")
    page.set_viewport_size(SIZE)

    page.goto("/ravi/ui/chat/?agent=react/assistant")
    send(page, "Send an invoice of 240 to Harbour Ltd")
    page.wait_for_selector(".request")
    staff.goto(page.url)
    staff.click(".request button:text-is('Approve')")
    page.wait_for_selector(".answer .foot")
    page.select_option("#agent", "react/storyteller")
    send(page, "Tell me the story")
    page.wait_for_selector(".answer.live .prose:has-text('fell asleep')")
    page.hover("#scroller")
    page.mouse.wheel(0, -260)
    page.wait_for_selector(".answer.live .prose:has-text('lit it')")
    page.screenshot(path=folder / "chat.png")

    page.goto("/ravi/ui/chat/?agent=react/assistant")
    send(page, "Send an invoice of 1800 to Nord Freight")
    page.wait_for_selector(".request")


def send(page: Any, text: str) -> None:
    page.wait_for_selector("ravi-chat:defined")
    page.fill("#text", text)
    page.press("#text", "Enter")


def say(page: Any, text: str) -> None:
    send(page, text)
    page.wait_for_selector(".answer .foot")


@contextmanager
def site() -> Iterator[str]:
    """A demo with the figures."""
    port = free_port()
    data = ROOT / ".demo" / str(port)
    try:
        with TemporaryDirectory() as folder, demo(port, Path(folder)) as running:
            assert running.says("log in as demo / demo"), running.text
            for line in (data / "env").read_text().splitlines():
                name, _, value = line.removeprefix("export ").partition("=")
                os.environ[name] = shlex.split(value)[0] if value else ""
            fill()
            yield f"http://127.0.0.1:{port}"
    finally:
        shutil.rmtree(data, ignore_errors=True)


def fill() -> None:
    import django

    django.setup()
    from django.utils import timezone

    from ravi_django.models import Rollup

    chance = random.Random(7)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    rows: dict[tuple[Any, ...], Rollup] = {}
    for hour in range(2 * HOURS):
        at = now - timedelta(hours=hour)
        share = (0.15, 0.5, 1, 0.8)[at.hour // 6] * (0.4 if at.weekday() > 4 else 1)
        for agent, rate in AGENTS.items():
            for outcome, part in (("completed", 0.97), ("failed", 0.03)):
                count = sum(chance.random() < share * part for _ in range(rate))
                for model in ("", "gpt-4o-mini") if outcome == "completed" else ("",):
                    for span, start in (("hour", at), ("day", at.replace(hour=0))):
                        key = {"span": span, "start": start, "tenant": "", "agent": agent, "model": model, "user": ""}
                        key |= {"outcome": "ok" if model else outcome, "bucket": chance.choice((6, 7, 7, 8, 8, 9, 10))}
                        if count > 0:
                            row = rows.setdefault(tuple(key.values()), Rollup(**key))
                            row.count += count
                            row.input_tokens += 900 * count
                            row.output_tokens += 160 * count
                            row.cost += count * 0.0012
    Rollup.objects.bulk_create(rows.values())


@contextmanager
def pages(address: str) -> Iterator[Any]:
    """`log_in(name)`: a page whose user's password is the name."""
    from tests.support.browser import chromium

    with chromium() as use, use() as browser:

        def log_in(name: str) -> Any:
            page = browser.new_context(base_url=address, viewport=SIZE, color_scheme="light").new_page()
            page.goto("/admin/login/?next=/ravi/ui/chat/" if name != "demo" else "/accounts/login/?next=/ravi/ui/chat/")
            page.fill("[name=username]", name)
            page.fill("[name=password]", name)
            page.press("[name=password]", "Enter")
            page.wait_for_url("**/ravi/ui/chat/**")
            return page

        yield log_in


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images")
