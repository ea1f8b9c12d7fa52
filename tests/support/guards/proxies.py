"""Answers in a person's place: the one that counts, by whom, and of which question."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

RUNS = UNIT + "test_user_proxy_runs.py"
REST = "tests/acceptance/api/test_api_reply_signals.py"
WHOM = UNIT + "test_whom_tools_ask.py"

PROXIES = [
    Mutant(
        "reply: not over an answer that was accepted",
        STORE + "replies.py",
        "        if not pending.update(**closed):\n            raise NotDue(None)\n",
        "        pending.update(**closed)\n",
        (RUNS,),
    ),
    Mutant(
        "reply: the question closes with it",
        STORE + "replies.py",
        "        if not pending.update(**closed):\n",
        "        if not pending.exists():\n",
        (RUNS,),
    ),
    Mutant(
        "reply: read once",
        STORE + "replies.py",
        "        if not Signal.objects.filter(id=signal_id, consumed_at=None).update(consumed_at=clock.now()):\n",
        "        if not Signal.objects.filter(id=signal_id, consumed_at=None).exists():\n",
        (RUNS,),
    ),
    Mutant(
        "reply: an answer gives way to the signal that came before it",
        STORE + "people.py",
        "        if request.signal and has_reply(request):\n            raise ConflictError",
        "        if False:\n            raise ConflictError",
        (RUNS,),
    ),
    Mutant(
        "reply: one that came in time is no expiry",
        STORE + "people.py",
        "        if request.signal and has_reply(request):\n            raise NotDue(None)\n",
        "",
        (RUNS,),
    ),
    Mutant(
        "reply: the answer's own signal is nobody else's",
        STORE + "replies.py",
        "woke=woke, consumed_at=clock.now()",
        "woke=woke",
        (RUNS,),
    ),
    Mutant(
        "reply: what was for an earlier question is not for the next",
        STORE + "replies.py",
        "    if not HumanRequest.objects.filter(run_id=request.run_id, signal=request.signal).exists():\n",
        "    if True:\n",
        (RUNS,),
    ),
    Mutant(
        "reply: a person's, sent ahead, is no answer to what is asked of another",
        STORE + "replies.py",
        '        if request.to == "owner" and conf.MAY_ANSWER is None:\n',
        "        if True:\n",
        (REST,),
    ),
    Mutant(
        "reply: nor one that the site's hook decides on",
        STORE + "replies.py",
        " and conf.MAY_ANSWER is None:",
        ":",
        (REST,),
    ),
    Mutant(
        "reply: the site's own code may know it ahead",
        STORE + "replies.py",
        "        earlier = earlier.filter(key__startswith=_PERSONS)\n",
        "",
        (RUNS,),
    ),
    Mutant(
        "reply: a person's signal or the question is first, under the run's lock",
        STORE + "replies.py",
        '        Run.objects.select_for_update(no_key=True).filter(id=run_id).values_list("id").first()\n',
        "",
        (REST,),
    ),
    Mutant(
        "reply: by a question's name, an answer under the rule of who may",
        RUNTIME + "replies.py",
        "    if not name.startswith(PEOPLES):\n        signal(",
        "    if True:\n        signal(",
        (REST,),
    ),
    Mutant(
        "reply: in the name of who is logged in",
        RUNTIME + "replies.py",
        "**_answer(payload), by=by)",
        "**_answer(payload), by=None)",
        (REST,),
    ),
    Mutant(
        "reply: no agent says it in a person's place",
        RUNTIME + "asks.py",
        "        if control.signal.startswith(PEOPLES):\n",
        "        if False:\n",
        (RUNS,),
    ),
    Mutant(
        "reply: a question's name begins as one",
        RUNTIME + "questions.py",
        "        if not signal.startswith(REPLY):",
        "        if False:",
        (UNIT + "test_ask_human.py",),
    ),
    Mutant(
        "proxy: messages of one conversation ask by names of their own",
        "ravi_django/agents/user_proxy.py",
        '        known = message.correlation_id in ("", *found)\n',
        "        known = not message.correlation_id\n",
        ("tests/unit/agents/test_user_proxy.py",),
    ),
    Mutant(
        "proxy: no answer is no consent",
        "ravi_django/agents/user_proxy.py",
        '                said = NO_ANSWER.get(action, NO_ANSWER["cancel"])\n',
        '                said = "Yes."\n',
        ("tests/unit/agents/test_user_proxy.py",),
    ),
    Mutant(
        "whom: a pause goes to whom it names",
        RUNTIME + "tool_pauses.py",
        "        to=None if pause.to is None else Addressees.of(pause.to),\n",
        "",
        (WHOM,),
    ),
    Mutant(
        "whom: the tool's question goes to whom the site names",
        RUNTIME + "tools/ask_human.py",
        "                to=self.to,\n",
        "",
        (WHOM,),
    ),
]
