"""The tables of docs/reference name what the code has, and docs/explanation shows code that runs."""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import runpy
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.core.management import get_commands, load_command_class
from django.dispatch import Signal

from ravi_django import RunContext, answer, errors, signals, submit
from ravi_django.kernel import HookEvent, ImageBlock
from ravi_django.testing import FakeClock, run_until_idle
from tests.support.docs import PAGES, ROOT, Page

PACKAGE = [path.read_text() for path in (ROOT / "ravi_django").rglob("*.py")]
SOURCE = runpy.run_path(str(ROOT / "docs/_ext/ravi_source.py"))
GUIDES = ("tutorial", "howto", "explanation", "help")


def rows(page: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", Page(page).text, re.MULTILINE))


def test_each_check_has_a_row_with_cause_and_fix() -> None:
    assert sorted(rows("checks")) == sorted({id for text in PACKAGE for id in re.findall(r"ravi\.[EWI]\d{3}", text)})


def test_each_command_has_a_row_with_its_arguments() -> None:
    commands = {name for name, app in get_commands().items() if app == "ravi_django"}

    assert commands == set(rows("commands"))
    for name, row in rows("commands").items():
        own = {"--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--no-color"}
        options = load_command_class("ravi_django", name).create_parser("manage.py", name).format_help()
        missing = {*re.findall(r"--[a-z-]+", options)} - own - {*re.findall(r"--[a-z-]+", row)}
        assert missing <= {"--force-color", "--skip-checks"}, name


def test_each_permission_that_the_code_asks_for_has_a_row() -> None:
    models = apps.get_app_config("ravi").get_models()
    every = {f"ravi.{action}_{model._meta.model_name}" for model in models for action in ("add", "change", "view")}
    every |= {f"ravi.delete_{model._meta.model_name}" for model in apps.get_app_config("ravi").get_models()}
    special = {
        f"ravi.{name}" for model in apps.get_app_config("ravi").get_models() for name, _ in model._meta.permissions
    }
    asked = {name for text in PACKAGE for name in re.findall(r'"(ravi\.[a-z_]+)"', text)} & every

    assert asked | special <= set(rows("permissions")) <= every | special


def test_each_member_of_the_context_has_a_row_with_a_call_that_it_takes() -> None:
    members = {f"ctx.{name}": member for name, member in vars(RunContext).items() if not name.startswith("_")}

    assert set(rows("ctx")) == set(members)
    for name, row in rows("ctx").items():
        (example,) = re.findall(rf"\| `((?:await )?{name}\b[^|]*)`$", row)
        expression = ast.parse(f"async def run(): {example}").body[0].body[0].value  # type: ignore[attr-defined]
        call = expression.value if isinstance(expression, ast.Await) else expression
        if isinstance(members[name], property):
            assert isinstance(call, ast.Attribute), name
        else:
            assert inspect.iscoroutinefunction(members[name]) == isinstance(expression, ast.Await), name
            named = {word.arg: word for word in call.keywords}
            inspect.signature(members[name]).bind("ctx", *call.args, **named)


def test_each_exception_signal_and_hook_has_a_row() -> None:
    raised = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, BaseException)}

    assert set(rows("exceptions")) == raised
    hooks = {f"on_{event.value}" for event in HookEvent}
    sent = {name for name, one in vars(signals).items() if isinstance(one, Signal)}
    loggers = {name for text in PACKAGE for name in re.findall(r'getLogger\("(ravi\.\w+)"\)', text)}
    listed = {*re.findall(r"`(\w[\w.]+)`", "".join(re.findall(r"^\| (`.*?) \|", Page("signals").text, re.MULTILINE)))}
    assert listed - {"call.data"} == hooks | sent | loggers


def test_the_headings_of_troubleshooting_are_texts_of_the_package() -> None:
    headings = re.findall(r"^### `(.*)`", Page("troubleshooting").text, re.MULTILINE)
    others = {  # texts of Django, SQLite, psycopg and pydantic
        "Unknown command: 'ravi_doctor'",
        "database is locked",
        "no such table: ravi_run",
        'invalid connection option "transaction_mode"',
        "SynchronousOnlyOperation",
        "Extra inputs are not permitted",
        "Input should be a valid integer",
    }
    parts = {part.strip() for heading in {*headings} - others for part in heading.split("…")} - {""}

    assert len(headings) > 40 and others <= {*headings}
    assert [part for part in parts if not any(part in text for text in PACKAGE)] == []


def test_the_effects_are_those_of_the_page() -> None:
    effects = Page("crashes").run("shop/effects.py")

    shown = [effects[name].promised_effect.value for name in ("order_status", "send_invoice", "note")]
    assert shown == ["idempotent", "at_most_once", "transactional"]


@pytest.mark.django_db(transaction=True)
def test_the_voucher_that_a_page_draws_is_the_same_a_week_later() -> None:
    with FakeClock() as clock:
        Page("determinism").run("shop/vouchers.py")
        run = submit("shop/vouchers", "Ada")
        run_until_idle()
        clock.advance(7 * 86400)
        run_until_idle()
        request = run.requests.get()
        answer(request, text="yes")
        run_until_idle()

    outcome = json.loads(run.result())
    assert request.text == f"Did you like your {outcome['euros']} euros?"
    assert outcome["liked"] == "yes"


def test_the_guides_stay_short() -> None:
    """The generated reference and the pages of contributors do not count."""
    guides = [page for page in PAGES if page.parent in {ROOT / "docs" / name for name in GUIDES}]

    assert sum(len(page.read_text().split()) for page in guides) <= 36_000
    howtos = {page.name: len(page.read_text().splitlines()) for page in guides if page.parent.name == "howto"}
    assert {name: lines for name, lines in howtos.items() if lines > 120} == {}


def test_each_public_name_says_what_it_does() -> None:
    named = public_things()
    members = [
        (f"{name}.{key}", getattr(thing, key))
        for name, thing in named
        if inspect.isclass(thing)
        for key, one in vars(thing).items()
        if (function := getattr(one, "fget", one)) and getattr(function, "__name__", "_")[0] != "_" and key[0] != "_"
        if getattr(function, "__module__", "").startswith("ravi_django")
    ]

    assert len(named) > 250
    assert [
        name for name, one in (*named, *members) if (callable(one) or isinstance(one, property)) and not _text(one)
    ] == []


def test_each_field_of_a_public_class_says_what_it_is() -> None:
    """By a comment, or by its name in the docstring. Members of enums and tags, as `type`, need none."""
    silent = [
        f"{name}: {text}"
        for name, thing in public_things()
        if inspect.isclass(thing) and not issubclass(thing, enum.Enum)
        for field, text in SOURCE["fields_of"](thing).items()
        if "# " not in text and not re.search(r'Literal\["[^"]*"\] = "', text)
        if not re.search(rf"`{field}`|\b{field}:\s", thing.__doc__ or "")
    ]

    assert silent == []
    assert SOURCE["fields_of"](ImageBlock)["size"] == "size: int | None = None  # bytes"


def test_the_texts_of_errors_are_read_from_each_way_to_raise_them() -> None:
    texts = SOURCE["raised_texts"]()

    for text, exception, file in (
        ("Unknown outcome …. Possible outcomes: ….", "InvalidInputError", "people/answers.py"),  # translated
        ("there is no such run of yours", "Refused", "ws/consumer.py"),  # a second argument
        ("unknown agent …; the agents are: …", "InvalidInputError", "agents/spec/spec.py"),  # a function makes it
        ("agent … is disabled; enable it in the admin", "AgentNotFoundError", "kernel/errors.py"),  # its __init__
        ("--value must be KEY=TEXT, not …", "CommandError", "management/commands/ravi_answer.py"),
    ):
        assert exception in texts[text][0] and file in texts[text][1], text
    assert [text for text in texts if re.search(r"%[(s]|\{\w*\}", text)] == []


def public_things() -> list[tuple[str, Any]]:
    """All that the blocks `ravi-api` of the pages show."""
    blocks = re.findall(r"\{ravi-api\} (\S+)(.*)", "".join(page.read_text() for page in PAGES))
    return [
        (f"{module}.{name}", getattr(import_module(module), name))
        for module, names in blocks
        for name in names.split() or SOURCE["public_names"](module)
    ]


def _text(thing: object) -> str:
    text = inspect.getdoc(thing) or ""
    return "" if text.startswith(f"{getattr(thing, '__name__', None)}(") else text  # a dataclass without one
