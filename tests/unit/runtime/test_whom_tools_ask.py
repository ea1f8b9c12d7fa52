"""Whom a tool's question and a pause go to: the site's choice. And that no tool reaches what answers them."""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import ravi_django
from ravi_django import register, tool, tools as built_in
from ravi_django.agents.flow import BaseAgentProxy, PauseForInputResult, TurnEnd, WaitForInput
from ravi_django.kernel import ForbiddenError, HumanInput, InvalidInputError, RunContext, Tool
from ravi_django.models import HumanRequest, Status
from ravi_django.tools import AskHumanTool
from tests.support import world
from tests.support.runs import asked, code, drive, make_run
from tests.support.tool_calls import calling
from tests.support.world import DurableContext

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_tools_question_goes_to_whom_the_site_names(ada, ann):
    code(calling("ask_human", question="May I?"), tools=[AskHumanTool(to="staff")])
    run = drive(make_run(owner=ada))
    request = asked(run)
    assert request.to == "staff"

    with pytest.raises(ForbiddenError):
        world.answer(request.id, text="Yes.", by=ada)

    world.answer(request.id, text="No.", by=ann)
    assert drive(run).output == "ok: The person answered: No."


def test_the_model_does_not_choose_whom():
    assert "to" not in AskHumanTool(to="staff").parameters["properties"]
    with pytest.raises(InvalidInputError, match="is no address") as found:
        AskHumanTool(to="my friend")
    assert found.value.field == "to"


def test_a_pause_goes_to_whom_it_names_and_to_nobody_is_an_error_of_the_tool(ada):
    def paying(to):
        @tool
        async def pay(amount: int, said: HumanInput | None = None) -> str | PauseForInputResult:
            """Pay."""
            return PauseForInputResult("How?", to=to) if said is None else f"paid by {said.text}"

        code(calling("pay", amount=5), tools=[pay])
        return drive(make_run(owner=ada))

    run = paying(["user:bob"])
    request = asked(run)
    assert (request.kind, request.to) == ("input", "user:bob")
    world.answer(request.id, text="card")
    assert drive(run).output == "ok: paid by card"

    run = paying("nobody in particular")
    assert run.status == Status.COMPLETED
    assert "is no address" in run.output
    assert HumanRequest.objects.count() == 1


@pytest.mark.parametrize("event", [WaitForInput("How?", to="staff"), PauseForInputResult("How?", to="staff")])
def test_a_generators_question_goes_to_whom_it_names(ada, event):
    class Asking(BaseAgentProxy):
        async def next_turn(self, prompt):
            told = yield event
            yield TurnEnd(told.text)

    agent = register(Asking("asking"))
    run = drive(make_run(str(agent.id), owner=ada))
    request = asked(run)
    assert request.to == "staff"

    world.answer(request.id, text="card")
    assert drive(run).output == "card"


ANSWERS = {
    "ravi_django.people.answers",
    "ravi_django.people.signal_answers",
}  # modules that answer requests
ROWS = {"ravi_django.people.rows", "ravi_django.people.top_ups"}
LATE = "ravi_django.people.uncertain"  # code that outlives its call answers the request about this call
CALLS = {  # what they write with, and the modules that may use it
    "answer_request": ROWS | {LATE},
    "answer_top_up": ROWS,
    "end_late": {LATE, "ravi_django.calls.tools.guarantees"},
}


def tool_modules() -> set[str]:
    """Where the shipped tools are defined, those that `ravi_django.tools` does not name too."""
    named = {getattr(built_in, name).__module__ for name in built_in.__all__}
    folders = [Path(ravi_django.__file__).parent / "capabilities" / "tools", Path(__file__).parents[3] / "ravi_django"]
    files = [*folders[0].glob("*.py"), *(folders[1] / "runtime" / "tools").glob("*.py")]
    root = folders[1].parent
    return named | {_name(file, root) for file in files}


def _name(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def reached(module: str) -> set[str]:
    """The project's modules that loading and running this one may load, wherever the import stands."""
    found, edge = set(), {module}
    while edge:
        name = edge.pop()
        found.add(name)
        edge |= imports(name) - found
    return found


@cache
def imports(module: str) -> set[str]:
    return {name for name in imported(module) if name.startswith("ravi_django")}


def imported(module: str) -> Iterator[str]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "ravi_django":  # whose names load their modules when they are used
                asked = {alias.name for alias in node.names}
                yield from (
                    f"ravi_django.{path}" for path, names in world.PUBLIC_NAMES.items() if asked & {*names.split()}
                )
            yield from (f"{node.module}.{alias.name}" for alias in node.names if is_module(node.module, alias.name))


def is_module(package: str, name: str) -> bool:
    if not package.startswith("ravi_django"):
        return False
    file = Path(importlib.util.find_spec(package).origin)
    return file.name == "__init__.py" and any((file.parent / name).with_suffix(end).exists() for end in ("", ".py"))


def tree_of(module: str) -> ast.AST:
    source = inspect.getsource(importlib.import_module(module))
    with suppress(SystemError):  # CPython counts the depth for all threads together: another may parse beside
        return WithoutTypes().visit(ast.parse(source))
    return WithoutTypes().visit(ast.parse(source))


@cache
def used_in(module: str) -> set[str]:
    return {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree_of(module))}


class WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def test_no_shipped_tool_reaches_what_answers_requests():
    modules = tool_modules()
    assert {"ravi_django.calls.builtin.ask_human", "ravi_django.calls.builtin.calculator"} <= modules

    for module in modules:
        within = reached(module)
        assert not within & ANSWERS, f"{module} reaches {within & ANSWERS}"
        for name in within:
            calls = {call for call in used_in(name) & CALLS.keys() if name not in CALLS[call]}
            assert not calls, f"{module} reaches {name}, which calls {calls}"


def test_the_walk_finds_what_it_looks_for():
    assert reached("ravi_django.management.commands.ravi_answer") & ANSWERS
    assert "ravi_django.engine.lease.state" in reached("ravi_django.calls.builtin.ask_human")


def test_the_context_and_the_tools_offer_no_way_to_answer():
    words = ("answer", "approve_request", "resolve", "signal", "grant")
    offered = {name for cls in (RunContext, DurableContext, Tool) for name in dir(cls) if not name.startswith("_")}

    assert {name for name in offered if any(word in name for word in words)} == {"answered", "sleep_until_signal"} & (
        offered
    )
