"""Each table is written by the packages that own it, and by no surface. Read off the source."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CORE = tuple(f"ravi_django/{folder}/" for folder in ("engine", "runs", "calls", "people", "live", "wings"))

# The packages that write a table: made by one, and changed by those whose subject it is.
OWNERS = {
    "AfterLease": "journal",
    "Ask": "lifecycle teams",
    "AuditRecord": "journal lifecycle",
    "Blob": "db",
    "BudgetAccount": "budgets people",
    "Erasure": "lifecycle",
    "FeedItem": "lifecycle social",
    "Follow": "lifecycle social",
    "HumanRequest": "lifecycle people runs",
    "InboxMessage": "lease lifecycle runs social teams",
    "JournalEntry": "journal",  # and a fork copies rows inside the database
    "OutboxEvent": "events journal",
    "Publication": "social",
    "Reservation": "budgets",
    "Rollup": "rollups",
    "Run": "journal lease lifecycle model rollups runs social streams teams worker",
    "Schedule": "schedules",
    "ScheduleTick": "schedules",
    "Session": "runs social",
    "Signal": "lease lifecycle people runs sources",
    "SourceItem": "sources",
    "StickyDecision": "people",
    "Turn": "journal lifecycle",
}

WRITES = {
    *("save", "create", "update", "delete", "bulk_create", "bulk_update", "get_or_create", "update_or_create"),
    *("asave", "acreate", "aupdate", "adelete", "abulk_create", "abulk_update", "aget_or_create", "aupdate_or_create"),
}
STATE = set(
    "Run JournalEntry InboxMessage Turn Signal Ask HumanRequest BudgetAccount Reservation StickyDecision".split()
)
OTHERS = set(  # no run state
    "Agent AgentVersion Blob BoardTask Delegation FeedPreferences Invoice Session Source StreamArchive StreamFrame "
    "SweepState Ticket WorkerProcess".split()
)

# What is elsewhere for a reason, by module and by the call as it stands there.
ALLOWED = {
    # A place among the open sockets, in the cache.
    ("ravi_django/limits.py", "site_cache.delete"),
    # Which run a repeated call follows, in the cache.
    ("ravi_django/services/repeats.py", "limits.delete"),
    # The limits of a model, which staff set: no state of a run.
    ("ravi_django/admin/limits.py", "obj.save"),
    # What the demo's readers prefer, beside their follows: no state of a run.
    ("project/feeds.py", "follows_of.update"),
    ("project/feeds.py", "Follow.objects.update"),
    # Users of the demo site.
    ("project/management/commands/seed_demo.py", "get_user_model().objects.get_or_create"),
    ("project/management/commands/seed_demo.py", "user.save"),
}


def modules() -> list[str]:
    files = (path for folder in ("ravi_django", "project") for path in (ROOT / folder).rglob("*.py"))
    names = (path.relative_to(ROOT).as_posix() for path in files)
    return sorted(name for name in names if not name.startswith(CORE) and "/migrations/" not in name)


def writes(source: str) -> Iterator[str]:
    """Calls that write rows of run state, or of what cannot be told to be something else; and SQL that does."""
    tree = ast.parse(source)
    others = OTHERS | _made_of_others(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_sql(node.value):
            yield node.value.strip().splitlines()[0]
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES):
            continue
        if node.func.attr in ("update", "aupdate") and node.args:  # of a dict, a set or a hash: a queryset's has none
            continue
        names = [part.id for part in ast.walk(node.func.value) if isinstance(part, ast.Name)]
        if STATE.isdisjoint(names) and not others.isdisjoint(names):
            continue
        yield f"{_root(node.func.value)}.{node.func.attr}"


def _made_of_others(tree: ast.AST) -> set[str]:
    """Variables that hold rows of other tables: `row = Ticket(…)`."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    made = [(node, {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}) for node in assigned]
    of = [node for node, names in made if names & OTHERS and not names & STATE]
    return {target.id for node in of for target in node.targets if isinstance(target, ast.Name)}


def _root(value: ast.expr) -> str:
    """`Run.objects` of `Run.objects.filter(id=1)`."""
    while isinstance(value, ast.Call):
        value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    return ast.unparse(value)


def _is_sql(text: str) -> bool:
    words = " ".join(text.upper().split())
    return any(verb in words for verb in ("UPDATE RAVI_", "INSERT INTO RAVI_", "DELETE FROM RAVI_", "TRUNCATE RAVI_"))


def test_no_surface_writes_run_state():
    found = {(module, call) for module in modules() for call in writes((ROOT / module).read_text())}
    assert found - ALLOWED == set(), "give it a function in a package that owns the table, or say here why it may stay"
    assert ALLOWED - found == set(), "it is no longer there"


def test_each_table_is_written_by_its_owners():
    found = defaultdict(set)
    for path in (path for folder in CORE for path in (ROOT / folder).rglob("*.py")):
        for call in writes(path.read_text()):
            words = {word.removeprefix("ravi_").lower() for word in re.findall(r"\w+", call)}
            for table in OWNERS:
                if table.lower() in words and (f"ravi_{table.lower()}" in call or table in call):
                    found[table].add(path.parent.name)
    assert {table: " ".join(sorted(owners)) for table, owners in found.items()} == OWNERS
