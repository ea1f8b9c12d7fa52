"""Guards of the requests socket, of answers over sockets, and of hints."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, UNIT, Mutant

_WS = "ravi_django/ws/"
_REQUESTS = ("tests/acceptance/ws/test_ws_requests.py",)
_ANSWERS = ("tests/acceptance/ws/test_ws_answers.py",)
_NOTICES = (UNIT + "test_notices.py",)

REQUESTS_WS = [
    Mutant(
        "requests socket: what somebody else is asked is not shown",
        _WS + "inbox.py",
        "    rows = mine.visible.filter(id__in=ids).",
        "    rows = HumanRequest.objects.filter(id__in=ids).",
        _REQUESTS,
    ),
    Mutant(
        "requests socket: a lost hint is made up for",
        _WS + "requests.py",
        "if everything or begun >= due or len",
        "if everything or len",
        _REQUESTS,
    ),
    Mutant(
        "requests socket: what has gone is closed",
        _WS + "requests.py",
        "        await self._show(changed | gone)\n",
        "        await self._show(changed)\n",
        _REQUESTS,
    ),
    Mutant(
        "requests socket: rights that change are shown",
        _WS + "requests.py",
        "if self._known.get(id) != state}",
        "if self._known.get(id, (0,))[0] != state[0]}",
        _REQUESTS,
    ),
    Mutant(
        "requests socket: what was pushed out is closed all the same",
        _WS + "requests.py",
        " or (self._below is not None and id <= self._below)",
        "",
        _REQUESTS,
    ),
    Mutant(
        "requests socket: the account is looked at again",
        _WS + "requests.py",
        "time.monotonic() - self._asked_at >= age_s:",
        "False:",
        _REQUESTS,
    ),
    Mutant(
        "answers over sockets: by the socket's user",
        _WS + "answering.py",
        "by=self._user, **said.given())",
        "by=None, **said.given())",
        _ANSWERS,
    ),
    Mutant(
        "answers over sockets: a repeated answer is no conflict with itself",
        _WS + "answering.py",
        "if self._tries > 1 and (run_id",
        "if self._tries > 9 and (run_id",
        _ANSWERS,
    ),
    Mutant(
        "answers over sockets: only a repeated one may be its own",
        _WS + "answering.py",
        "if self._tries > 1 and (run_id",
        "if (run_id",
        _ANSWERS,
    ),
    Mutant(
        "answers over sockets: another user's answer is not one's own",
        _WS + "answering.py",
        " or row.answered_by_id != self._user.pk:",
        ":",
        _ANSWERS,
    ),
    Mutant(
        "answers over sockets: another answer is not this one",
        _WS + "answering.py",
        "        return row.run_id if mine else None\n",
        "        return row.run_id\n",
        _ANSWERS,
    ),
    Mutant(
        "hints: the queue is bounded",
        RUNTIME + "notices.py",
        "            if len(self._waiting) > MOST:\n",
        "            if False:\n",
        _NOTICES,
    ),
    Mutant(
        "hints: a layer that hangs is given up",
        RUNTIME + "notices.py",
        "            async with asyncio.timeout(SEND_S):\n",
        "            if True:\n",
        _NOTICES,
    ),
    Mutant(
        "hints: a forked child has a thread of its own",
        RUNTIME + "notices.py",
        "    _sender, _making = None, threading.Lock()\n",
        "    _making = threading.Lock()\n",
        _NOTICES,
    ),
    Mutant(
        "hints: one complaint a minute",
        RUNTIME + "notices.py",
        "now - _complained_at >= COMPLAIN_S",
        "True",
        _NOTICES,
    ),
]
