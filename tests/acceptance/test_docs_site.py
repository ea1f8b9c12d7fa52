"""The site of the docs, as `make docs` builds it, in a browser. Needs a Chromium."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.browser import AXE, new_page
from tests.support.docs import ROOT, Page
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.full

KINDS = (
    "index",
    "tutorial/quickstart",
    "howto/approvals",
    "reference/settings",
    "explanation/comparison",
    "explanation/life-of-a-run",
    "help/errors",
)
WORDS = {
    "FOUR_EYES": "reference/settings",
    "ravi.W012": "reference/checks",
    "ravi_doctor": "reference/commands",
    "escalation": "howto/people",
    "RunFailedError": "reference/exceptions",
    "at_most_once": "explanation/crashes",
    "systemd": "howto/processes",
    "Temporal": "explanation/comparison",
    "delegation": "howto/people",
    "Sentry": "help/errors",
}


CONTRAST = """async () => (await axe.run(document, { runOnly: ['color-contrast'] })).violations
    .flatMap(rule => rule.nodes.map(node => `${location.pathname}: ${node.html.slice(0, 200)}`))"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address and its folder."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(folder / "trees"), "docs"]
    options: Any = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 3 * BOUND_S}
    built = subprocess.run([*command, str(folder / "html")], **options)
    assert built.returncode == 0, built.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder / "html"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder / "html"
    server.shutdown()
    server.server_close()


def test_an_object_is_a_link_to_its_row(site: tuple[str, Path]) -> None:
    page = (site[1] / "reference/checks.html").read_text()

    for target in (
        "settings.html#setting-FOUR_EYES",
        "commands.html#command-ravi_doctor",
        "permissions.html#permission-ravi.run_agent",
    ):
        address, anchor = target.split("#")
        assert f'href="{target}"' in page
        assert f'id="{anchor}"' in (site[1] / "reference" / address).read_text()


def test_a_name_of_another_project_is_a_link_to_its_docs(monkeypatch: Any) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "docs/_ext")
    from ravi_objects import address_elsewhere

    item = SimpleNamespace(uri="https://example.com/#name")
    items = {"std:setting": {"USE_TZ": item}, "py:class": {"django.db.models.Model": item, "str": item}}
    env = SimpleNamespace(intersphinx_cache={}, intersphinx_inventory=items, intersphinx_named_inventory={})

    linked = [text for text in ("USE_TZ", "django.db.models.Model", "str", "MY_OWN") if address_elsewhere(env, text)]
    assert linked == ["USE_TZ", "django.db.models.Model"]


def test_a_text_of_an_error_is_on_the_page_of_all(site: tuple[str, Path]) -> None:
    page = re.sub("<[^>]+>", "", (site[1] / "reference/messages.html").read_text())

    assert "tool …: a model cannot fill in …; name each argument" in page


def test_a_signature_is_that_of_the_source(site: tuple[str, Path]) -> None:
    pages = {page.name: re.sub("<[^>]+>", "", page.read_text()) for page in (site[1] / "reference").glob("*.html")}

    assert "temperature: float | None = None  # from 0" in html.unescape(pages["kernel.html"])
    assert 'reason: str = "cancelled by the site\'s code"' in html.unescape(pages["events-in-python.html"])
    assert [name for name, text in pages.items() if re.search("0x[0-9a-f]{8}|_Pydantic|model_post_init", text)] == []


def test_the_text_for_models_has_the_generated_reference(site: tuple[str, Path]) -> None:
    text = (site[1] / "llms-full.txt").read_text()
    parts = re.findall(r"^# Part (\d)", text, re.MULTILINE)

    assert parts == sorted(parts) and len(parts) == 7
    assert "submit(\n    agent: " in text and "`tool …: a model cannot fill in …" in text
    assert "### `POST runs/`" in text and "### `ravi.W012`" in text
    assert "{ravi-" not in text and "{include}" not in text


def test_each_check_and_exception_is_a_heading_of_troubleshooting(site: tuple[str, Path]) -> None:
    page = (site[1] / "help/troubleshooting.html").read_text()
    names = {
        name for one in ("checks", "exceptions") for name in re.findall(r"^\| `(\S+)` \|", Page(one).text, re.MULTILINE)
    }

    assert len(names) > 90
    assert names == {*re.findall(r'<section id="about-([^"]+)">\s*<h3>', page)}


def test_no_link_inside_the_site_is_broken(site: tuple[str, Path]) -> None:
    pages = {path: path.read_text() for path in site[1].rglob("*.html")}
    ids = {path: {*re.findall(r'id="([^"]+)"', text)} for path, text in pages.items()}
    broken = set()
    for page, text in pages.items():
        for link in re.findall(r'href="(?![a-z]+:)([^"]+)"', text):
            name, _, anchor = link.partition("#")
            target = (page.parent / name.partition("?")[0]).resolve() if name else page
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                broken.add(f"{page.name}: {link}")

    assert len(pages) > 60 and broken == set()


def test_no_page_is_wide_or_pale_and_the_search_leads_to_the_page(site: tuple[str, Path], chromium: Any) -> None:
    address, wide, pale = site[0], [], []
    with chromium() as browser:
        for scheme, width in product(("light", "dark"), (1360, 390)):
            page = new_page(browser, address)
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            for kind in KINDS:
                page.goto(f"{address}/{kind}.html")
                if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    wide.append((kind, scheme, width))
                if (scheme, width) in (("light", 1360), ("dark", 390)):
                    page.evaluate(AXE)
                    pale += page.evaluate(CONTRAST)
            page.close()
        page = new_page(browser, address)
        found = {}
        for word in WORDS:
            page.goto(f"{address}/search.html?q={word}")
            page.wait_for_selector("#search-results ul.search li a")
            links = page.locator("#search-results ul.search li a")
            found[word] = [links.nth(n).get_attribute("href").split(".html")[0] for n in range(min(8, links.count()))]

    assert (wide, pale) == ([], [])
    assert [word for word, target in WORDS.items() if target not in found[word]] == [], found
