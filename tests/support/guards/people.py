"""What is asked of people, and what they are shown: answered once, in time, by what was offered; written down once."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

API = "tests/acceptance/api/"

QUESTIONS = [
    Mutant(
        "question: known by its place after a crash",
        RUNTIME + "questions.py",
        "    begun = effects.journal.started(path)\n",
        "    begun = None\n",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "question: opened in the commit that announces it",
        RUNTIME + "questions.py",
        "            await effects.record(announced, partial(store.open_request, request=request, most=most))\n",
        "            await effects.record(announced)\n"
        "            await effects.database.call(request.save, force_insert=True)\n",
        (UNIT + "test_ask_human.py", UNIT + "test_ask_human_tool.py"),
    ),
    Mutant(
        "question: so many through a tool and no more",
        STORE + "people.py",
        "if most is not None and same.count() >= most:",
        "if False:",
        (UNIT + "test_ask_human_tool.py",),
    ),
    Mutant(
        "question: nothing is left of one too many",
        RUNTIME + "questions.py",
        "            effects.notes[:] = [note for note in effects.notes if note is not begun]\n",
        "",
        (UNIT + "test_ask_human_tool.py",),
    ),
    Mutant(
        "question: not inside an at-most-once tool",
        RUNTIME + "questions.py",
        "        effects.check_may_wait(path)\n",
        "",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "question: an answer is one of the choices",
        RUNTIME + "answers.py",
        "and text not in request.choices:",
        "and False:",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "question: answered as what it is",
        RUNTIME + "answers.py",
        "    if given.action not in allowed:\n",
        "    if False:\n",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "answer: not of an ended run",
        STORE + "people.py",
        "    if run_status in TERMINAL:\n",
        "    if False:\n",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "answer: not after its time",
        STORE + "people.py",
        "if request.expires_at is not None and request.expires_at <= present():",
        "if False:",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "expiry: not over an answer",
        STORE + "people.py",
        "        if request.status != HumanRequest.Status.PENDING:\n            raise NotDue(None)\n",
        "",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "expiry: by the database's clock",
        STORE + "people.py",
        "if request.expires_at is None or now < request.expires_at:",
        "if False:",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "question: closed by a run that begins anew",
        STORE + "generations.py",
        "    close_requests(lease.run, held)\n",
        "",
        (UNIT + "test_deep_questions.py",),
    ),
]

BOARD = [
    Mutant(
        "board: one commit with its row",
        RUNTIME + "tools/board.py",
        "        super().__init__(board_add, effect=Effect.TRANSACTIONAL)\n",
        "        super().__init__(board_add)\n",
        (UNIT + "test_board.py",),
    ),
    Mutant(
        "board: a number that was taken is not given again",
        RUNTIME + "board.py",
        "            if _last_number(place) < task.number:\n                raise\n            continue",
        "            raise\n            continue",
        (UNIT + "test_board.py",),
    ),
    Mutant(
        "board: a row that cannot be written is not tried for ever",
        RUNTIME + "board.py",
        "            if _last_number(place) < task.number:\n                raise\n",
        "",
        (UNIT + "test_board.py",),
    ),
    Mutant(
        "board: so many tasks of an agent",
        RUNTIME + "board.py",
        "    if number > MAX_TASKS:\n",
        "    if False:\n",
        (UNIT + "test_board.py",),
    ),
    Mutant(
        "board: so many tasks of a thread",
        RUNTIME + "board.py",
        ".count() >= MAX_ALL:",
        ".count() >= 10**9:",
        (UNIT + "test_board.py",),
    ),
    Mutant(
        "board: a thread of the run's own owner",
        RUNTIME + "board.py",
        "id=named, owner_id=run.owner_id, tenant=run.tenant",
        "id=named",
        (UNIT + "test_board.py",),
    ),
    Mutant(
        "board: the agent's own tasks",
        RUNTIME + "board.py",
        "agent=place.agent, number=min(",
        "number=min(",
        (UNIT + "test_board.py",),
    ),
    Mutant(
        "board: a spawned run's tasks are its root's",
        RUNTIME + "board.py",
        "    while session.parent_session is not None:\n",
        "    while False:\n",
        (UNIT + "test_board.py",),
    ),
    Mutant(
        "board: the thread above is looked up as its reader",
        "ravi_django/api/board.py",
        "find_session(request, thread.id).board.all()",
        "thread.board.all()",
        (API + "test_api_board.py",),
    ),
]
