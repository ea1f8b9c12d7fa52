"""What README and docs show is run here in a site of README's blocks, and their names and links are checked."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import call_command, get_commands, load_command_class

from ravi_django.conf import DEFAULTS
from tests.support import forks, template
from tests.support.docs import PAGES, ROOT, Page, with_real_model, write
from tests.support.openai_server import Body, OpenAIServer, Reply, tool_results
from tests.support.patience import seconds

pytestmark = pytest.mark.full

README = Page("README")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new Django site with the README's blocks typed in, and those of the feeds page."""
    folder = tmp_path_factory.mktemp("site")
    call_command("startproject", "shop", folder)
    for block in (*README.blocks, *(one for one in Page("feeds").blocks if one.file == "shop/agents/news.py")):
        if block.file:
            write(folder, with_real_model(block))
    return folder


@pytest.fixture
def site(folder: Path) -> Path:
    """That site with a new database."""
    for old in folder.glob("db.sqlite3*"):
        old.unlink()
    template.sqlite(folder / "db.sqlite3")
    return folder


def python(site: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python process in the site."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    environment = {**kept, "PYTHONPATH": str(ROOT), **environment}
    return forks.run(argv, cwd=site, env=environment, capture_output=True, text=True, timeout=seconds(90))


def story(
    site: Path, script: Callable[[Body], Reply], *argv: str
) -> tuple[subprocess.CompletedProcess[str], list[Body]]:
    """A process in the site whose model answers by the script; its requests to the model are returned too."""
    settings = {"DJANGO_SETTINGS_MODULE": "shop.settings"}
    with OpenAIServer(script=script) as server:
        ran = python(site, *argv, **settings, OPENAI_API_BASE=server.base_url, OPENAI_API_KEY="test")
    return ran, [request.body for request in server.requests]


BEGIN = """
import django
django.setup()
from ravi_django import submit
from tests.support import world
from ravi_django.testing import run_until_idle

world.replace("dispatch_send", lambda run_id: None)  # run_until_idle drives them, no worker besides
"""
NEWS = """
from shop.agents import news
from django.contrib.auth.models import User
from ravi_django.models import JournalEntry, Publication
world.replace("background_hint", lambda task, *args: None)
eve = User.objects.create_user("eve")
news.subscribe(eve)
news.subscribe(eve)
news.announce("Ferries are back", "1")
news.announce("Ferries are back", "1")
news.announce("Ferries have delays", "2")
submit("information/harbour", "A long story of a bridge")
run_until_idle()
for publication in Publication.objects.order_by("id"):
    world.fan_out_run(publication.id)
run_until_idle()
for row in JournalEntry.objects.filter(kind="log", name="feed.curated").order_by("seq"):
    print(row.run.owner, row.result["keep"], row.result["summary"])
"""


def test_the_docs_reader_keeps_what_its_user_prefers(site: Path) -> None:
    ran, _ = story(site, lambda body: Reply(text="A bridge."), "-c", BEGIN + NEWS)

    assert ran.stdout.splitlines() == [
        "eve True Ferries are back",
        "eve False Ferries have delays",
        "eve False A bridge.",
    ], ran.stderr


TYPED = """
import shop.letter_types, shop.letters
run = submit("react/parcels", "Order 7 has not come to Bern.")
complaint = shop.letter_types.read_complaint("Where is order 7?")
run_until_idle()
print(repr(run.result()), repr(complaint.result()))
"""


def test_the_docs_typed_agent_answers_in_its_form(site: Path) -> None:
    for name in ("shop/letters.py", "shop/letter_types.py"):
        (site / name).write_text(Page("typed-results").code(name))

    def script(body: Body) -> Reply:
        tried = body["messages"][-1]["role"] == "user" and "not a valid result" in body["messages"][-1]["content"]
        if body["response_format"]["json_schema"]["name"] == "Complaint":
            return Reply(text='{"order": 7, "angry": true}')
        return Reply(text=json.dumps({"order": 7 if tried else 0, "city": "Bern"}))

    ran, bodies = story(site, script, "-c", BEGIN + TYPED)

    assert ran.stdout.splitlines() == ["Parcel(order=7, city='Bern') Complaint(order=7, angry=True)"], ran.stderr
    assert {body["response_format"]["json_schema"]["name"] for body in bodies} == {"Parcel", "Complaint"}
    assert "Today is 20" in bodies[0]["messages"][0]["content"]


ROWS = """
import shop.archive, shop.agents.support as support
print(support.make_support().version, support.make_support().version)
run = support.ask_support("When are you open on Sunday?")
run_until_idle()
run.refresh_from_db()
print(run.status, run.agent_version, run.output)
from django.contrib.auth.models import User
ada = User.objects.create_user("ada-2")
first, second = (shop.archive.go_on("And 6 * 8?", ada) for _ in "12")
run_until_idle()
print(shop.archive.agent.tools.names(), first.session_id == second.session_id, first.session.name)
"""


def test_the_docs_agent_without_code_runs_and_conversations_come_back(site: Path) -> None:
    for block in (*Page("agents").blocks, *Page("import").blocks):
        if block.language == "python":
            write(site, block)

    def script(body: Body) -> Reply:
        if tool_results(body):
            return Reply(text="We are closed.")
        return Reply(tool_calls=(("opening_hours", {"day": "Sunday"}),))

    ran, bodies = story(site, script, "-c", BEGIN + ROWS)

    assert ran.stdout.splitlines() == ["1 1", "completed 1 We are closed.", "['calculator'] True s-1"], ran.stderr
    assert [message["role"] for message in bodies[2]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    first = bodies[0]
    assert first["messages"][0]["content"].startswith("You help Ada, who is a new customer. Today is 20")
    assert [tool["function"]["name"] for tool in first["tools"]] == ["opening_hours", "current_time", "handoff_helper"]


TOOLS = """
from django.core.management import call_command
call_command("makemigrations", "shop", verbosity=0)
call_command("migrate", verbosity=0)
import shop.ledger
from django.contrib.auth.models import Permission, User
from ravi_django import answer
ada = User.objects.create_user("ada")
ada.user_permissions.add(Permission.objects.get(codename="view_payment"))
run = submit("react/ledger", "Ada has paid 50.", user=ada)
run_until_idle()
run.refresh_from_db()
payments = shop.ledger.Payment.objects
print(run.status, run.output, list(payments.values_list("customer", "amount")))
run = submit("react/ledger", "Give it back.", user=ada)
run_until_idle()
request = run.requests.get()
print(request.kind, request.text, payments.count())
answer(request.id, text="yes", by=ada)
run_until_idle()
run.refresh_from_db()
print(run.status, run.output, payments.count())
"""


def test_the_docs_tools_book_and_read(site: Path) -> None:
    for name in ("shop/models.py", "shop/ledger.py"):
        (site / name).write_text(Page("tools").code(name))

    def script(body: Body) -> Reply:
        booking = "has paid" in str(body["messages"])
        match tool_results(body):
            case 0 if booking:
                return Reply(tool_calls=(("book", {"customer": "Ada", "amount": 50}),))
            case 0:
                return Reply(tool_calls=(("give_back", {"payment": 1}),))
            case 1 if booking:
                return Reply(tool_calls=(("read_payment", {"customer": "Ada"}),))
            case _:
                return Reply(text=f"So it is: {body['messages'][-1]['content']}")

    ran, _ = story(site, script, "-c", BEGIN + TOOLS)

    assert ran.stdout.startswith("completed So it is: "), ran.stderr
    first, asked, last = ran.stdout.splitlines()
    assert first.endswith("[('Ada', 50)]")
    assert '{"customer":"Ada","amount":50}' in first
    assert asked == "input Give payment 1 back? 1"
    assert last == "completed So it is: given back, says ada 0"


FLOWS = """
import shop.cases, shop.agents.desk, shop.inbox
from ravi_django.models import HumanRequest, Run
def drive(run, answer):
    run_until_idle()
    request = HumanRequest.objects.get(status="pending")
    print(request.run.agent, request.kind, request.text)
    if request.run_id == run.id:
        world.answer(request.id, text=answer)
    else:
        shop.inbox.answer_first(run.id, answer)
    run_until_idle()
    run.refresh_from_db()
    print(run.agent, run.status, run.output)
direct = submit("agent/returns", "order 7")
drive(direct, "broken")
print([frame["text"] for frame in world.events_page(direct.id)[0] if frame["type"] == "text.delta"])
drive(submit("react/desk", "I send back order 8"), "too late")
drive(submit("react/cases", "Where to?"), "Bern")
drive(submit("react/cases", "Take it back"), "broken")
drive(submit("react/cases", "Let me talk to returns"), "broken")
"""


def test_the_docs_flows_run(site: Path) -> None:
    for block in (*Page("flows").blocks, *Page("pauses").blocks, *Page("frames").blocks):
        if block.file:
            write(site, block)

    calls = {
        "order 8": ("handoff_returns", {"task": "order 8"}),
        "Where to?": ("ask_for_address", {}),
        "Take it back": ("take_back", {"order": 9}),
        "Let me talk": ("give_to_returns", {"order": 10}),
    }

    def script(body: Body) -> Reply:
        if tool_results(body):
            return Reply(text=f"So: {body['messages'][-1]['content']}")
        said = body["messages"][-1]["content"]
        return Reply(tool_calls=(next(call for words, call in calls.items() if words in said),))

    ran, bodies = story(site, script, "-c", BEGIN + FLOWS)

    assert ran.stdout.splitlines() == [
        "agent/returns question Why do you send it back?",
        'agent/returns completed {"order":7,"reason":"broken"}',
        "['Order 7 has cost 47.0. ']",
        "agent/returns question Why do you send it back?",
        'react/desk completed So: {"order":8,"reason":"too late"}',
        "react/cases input Where shall we send it?",
        "react/cases completed So: Bern",
        "agent/returns question Why do you send it back?",
        'react/cases completed So: {"order":9,"reason":"broken"}',
        "agent/returns question Why do you send it back?",
        'agent/returns completed {"order":10,"reason":"broken"}',
    ], ran.stderr
    tools = [tool["function"] for tool in bodies[0]["tools"]]
    assert [tool["name"] for tool in tools] == ["handoff_returns"]
    assert tools[0]["description"].endswith("Takes parcels back.")


TEAM = """
import shop.team
from ravi_django.models import Run
for text in ("How many lamps? Tell Ada.", "May we sell them?"):
    run = submit("orchestrator/office", text)
    run_until_idle()
    run.refresh_from_db()
    children = Run.objects.filter(parent=run).order_by("agent").values_list("agent", "priority", "status")
    print(run.status, run.agent, run.output, list(children))
"""


def test_the_docs_team_shares_the_work_and_hands_over(site: Path) -> None:
    (site / "shop/team.py").write_text(Page("teams").code("shop/team.py"))

    def script(body: Body) -> Reply:
        tools = [tool["function"]["name"] for tool in body.get("tools", [])]
        said = [message["content"] for message in body["messages"] if message["role"] == "user"][-1]
        if tool_results(body):
            told = [message["content"] for message in body["messages"] if message["role"] == "tool"]
            return Reply(text=f"So: {' '.join(told)}")
        if "handoff_lawyer" not in tools:
            return Reply(tool_calls=(("stock", {"article": "lamp"}),)) if "stock" in tools else Reply(text=said)
        if "sell" in said:
            return Reply(tool_calls=(("handoff_lawyer", {"task": "Yes, you may."}),))
        return Reply(tool_calls=(("handoff_buyer", {"task": "How many?"}), ("handoff_helper", {"task": "Dear Ada"})))

    ran, _ = story(site, script, "-c", BEGIN + TEAM)

    assert ran.stdout.splitlines() == [
        "completed orchestrator/office So: So: lamp: 12 Dear Ada "
        "[('react/buyer', 4, 'completed'), ('react/helper', 2, 'completed')]",
        "completed react/lawyer Yes, you may. []",
    ], ran.stderr


TEXTS = {page: page.read_text() for page in PAGES}


@pytest.mark.gate
def test_every_command_of_the_docs_exists() -> None:
    shown = {*re.findall(r"manage\.py (ravi_\w+)", "".join(TEXTS.values()))}

    assert len(shown) > 5
    for name in shown:
        assert load_command_class(get_commands()[name], name).create_parser("manage.py", name).format_help()


@pytest.mark.gate
def test_every_make_target_of_the_docs_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"(?:^    |`)make ([a-z-]+)", "".join(TEXTS.values()), re.MULTILINE)}

    assert {"demo", "test", "chaos"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.gate
def test_every_setting_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+?) \|", Page("settings").text, re.MULTILINE)
    shown = {key: default for key, default in rows if not default.startswith("see [")}

    assert sorted(key for key, _ in rows) == sorted(DEFAULTS)
    assert {key: ast.literal_eval(default.strip("`")) for key, default in shown.items()} == {
        key: DEFAULTS[key] for key in shown
    }


@pytest.mark.gate
def test_every_link_of_the_docs_leads_to_a_file_and_a_heading() -> None:
    for page, text in TEXTS.items():
        for name, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name}: {name}"
            assert not anchor or anchor in anchors(target.resolve()), f"{page.name}: {name}#{anchor}"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and those that the page names."""
    headings = re.findall(r"^#+ (.*)", TEXTS[page], re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | {*re.findall(r'<a id="(.*?)">', TEXTS[page])}


@pytest.mark.gate
def test_the_package_names_pages_that_exist_and_no_other_product() -> None:
    texts = [
        path.read_text() for end in ("py", "js", "html", "po") for path in (ROOT / "ravi_django").rglob(f"*.{end}")
    ]
    named = {name for text in texts for name in re.findall(r"docs/[\w/-]+\.md", text)}
    assert named and [name for name in named if not (ROOT / name).exists()] == []

    pages = [path.read_text() for path in ROOT.glob("docs/**/*.md") if path.name != "seeds.md"]
    assert [
        name for text in [*texts, *pages, README.text] for name in re.findall(r"\bAgentic\b|(?<!X-)\bRavi\b", text)
    ] == []


@pytest.mark.gate
def test_every_step_of_the_walks_is_where_the_page_says() -> None:
    package = ROOT / "ravi_django"
    walks = Page("architecture").text.split("## Five requests")[1].split("## Which file")[0]
    steps = re.findall(r"`([\w/]+\.py): (\w+)`", walks)

    for file, name in steps:
        sources = [path.read_text() for path in package.rglob(file)]
        assert any(re.search(rf"(def|class) {name}\b", source) for source in sources), f"{file}: {name}"
    assert len(steps) > 100


@pytest.mark.gate
def test_every_package_says_what_it_owns_and_survives_and_where_to_begin() -> None:
    for folder in ("engine", "runs", "calls", "people", "live", "wings"):
        for path in (ROOT / "ravi_django" / folder).rglob("__init__.py"):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            first = re.search(r"Read\s`([\w/]+\.py)`", text)
            assert first and (path.parent / first[1]).exists(), path
            assert re.search(r"\bown|Table:", text, re.IGNORECASE) and re.search(r"must\ssurvive", text), path


def test_the_index_leads_to_every_page() -> None:
    linked = re.findall(r"\]\((\w[\w/-]*\.md)\)", (ROOT / "docs/index.md").read_text())
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if ROOT / "docs" in page.parents}

    assert set(linked) == pages - {"index.md"}
    assert "(docs/index.md)" in README.text
