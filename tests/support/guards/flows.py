"""Generator agents, agents as tools, and questions that end with their run."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

AGENTS = "ravi_django/agents/"
PROXY = "tests/unit/agents/test_proxy_agent.py"

FLOWS = [
    Mutant(
        "flow: a request's lists and dicts are its own",
        AGENTS + "request_state.py",
        "if name not in shared and (own := _fresh(value, known)) is not value:",
        "if False and (own := value):",
        (PROXY,),
    ),
    Mutant(
        "flow: a request has a copy of the agent",
        AGENTS + "request_state.py",
        "    mine = copy.copy(agent)\n",
        "    mine = agent\n",
        (PROXY,),
    ),
    Mutant(
        "flow: closed at the turn's end",
        AGENTS + "generator.py",
        "        finally:\n            await self.close()\n",
        "        finally:\n            pass\n",
        (PROXY,),
    ),
    Mutant(
        "flow: what goes wrong is raised at the yield",
        AGENTS + "generator.py",
        "                    event = await self._generator.athrow(error)\n",
        "                    raise\n",
        (PROXY,),
    ),
    Mutant(
        "flow: a turn's result is checked",
        AGENTS + "proxy_turn.py",
        "self._result = self._checked(result)",
        "self._result = result",
        (PROXY,),
    ),
    Mutant(
        "flow: nothing is said twice by a replay",
        RUNTIME + "outputs.py",
        "            if row is not None:\n",
        "            if False:\n",
        (UNIT + "test_proxy_runs.py",),
    ),
    Mutant(
        "flow: the pieces of a recorded text are silent",
        RUNTIME + "outputs.py",
        "        if self._recorded > 0:\n",
        "        if False:\n",
        (UNIT + "test_proxy_runs.py",),
    ),
    Mutant(
        "team: an agent registered by itself stays",
        RUNTIME + "registry.py",
        "            if place not in _agents or place in _by_team:\n                _agents[place] = member\n",
        "            if True:\n                _agents[place] = member\n",
        (PROXY,),
    ),
    Mutant(
        "question: the end of its run says that it is closed",
        STORE + "journal.py",
        "    if entangled:\n        note_closed(run.id, entries[-1])\n",
        "",
        (UNIT + "test_deep_questions.py",),
    ),
    Mutant(
        "question: the end of a run that nobody leases says so too",
        STORE + "endings.py",
        "    note_closed(run.id, entry)\n",
        "",
        (UNIT + "test_deep_questions.py",),
    ),
    Mutant(
        "question: a new beginning says so too",
        STORE + "generations.py",
        "        note_closed(lease.run_id, entry)\n",
        "        pass\n",
        (UNIT + "test_deep_questions.py",),
    ),
    Mutant(
        "question: a retry shows what it has opened again",
        STORE + "retry.py",
        '            entry.result["opened"] = opened\n',
        "            pass\n",
        (UNIT + "test_deep_questions.py",),
    ),
    Mutant(
        "flow: what lies in a dict is the request's own",
        AGENTS + "request_state.py",
        "dict.__setitem__(mine, key, _fresh(one, known))",
        "pass",
        (PROXY,),
    ),
    Mutant(
        "flow: what lies in a list is the request's own",
        AGENTS + "request_state.py",
        "mine[place] = _fresh(one, known)",
        "pass",
        (PROXY,),
    ),
    Mutant(
        "flow: a called tool that hands over hands over",
        AGENTS + "proxy_turn.py",
        "if result.finish is not None:",
        "if False:",
        (UNIT + "test_proxy_runs.py",),
    ),
    Mutant(
        "flow: a subagent's late reply is no prompt",
        AGENTS + "proxy_turn.py",
        "            task = without_late_reply(task)\n",
        "            pass\n",
        (UNIT + "test_late_replies.py",),
    ),
    Mutant(
        "flow: nor that of a run it waits for",
        AGENTS + "proxy_turn.py",
        "without_late_reply(event.message)",
        "event.message",
        (UNIT + "test_late_replies.py",),
    ),
    Mutant(
        "flow: a result that is no text is kept too",
        AGENTS + "proxy_agent.py",
        "        await self._keep(_as_text(result))\n",
        "        if isinstance(result, str):\n            await self._keep(result)\n",
        (UNIT + "test_proxy_runs.py",),
    ),
]
