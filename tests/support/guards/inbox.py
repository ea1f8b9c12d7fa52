"""The admin's inbox: who sees what, who decides, and that nothing is decided by a slip."""

from __future__ import annotations

from tests.support.guards.mutant import Mutant

ADMIN = "ravi_django/admin/"
PAGES = "ravi_django/pages/"
TESTS = "tests/acceptance/admin/"

INBOX = [
    Mutant(
        "inbox: what one may read",
        ADMIN + "inbox.py",
        "= readers.readable(request).order_by(",
        "= HumanRequest.objects.order_by(",
        (TESTS + "test_admin_inbox.py",),
    ),
    Mutant(
        "inbox: of one's tenants",
        ADMIN + "readers.py",
        "    return rows if theirs is None else ",
        "    return rows if True else ",
        (TESTS + "test_admin_inbox.py",),
    ),
    Mutant(
        "decision: under the name of who is logged in",
        ADMIN + "decisions.py",
        "human.answer(asked.pk, by=request.user, **given)",
        "human.answer(asked.pk, by=None, **given)",
        (TESTS + "test_admin_decide.py",),
    ),
    Mutant(
        "decision: approved as asked, or said to be changed",
        PAGES + "form.py",
        "            if arguments != self.asked.arguments:\n",
        "            if False:\n",
        (TESTS + "test_admin_decide.py",),
    ),
    Mutant(
        "decision: no argument twice",
        PAGES + "form.py",
        "        if len(found) < len(pairs):\n",
        "        if False:\n",
        (TESTS + "test_admin_decide.py",),
    ),
    Mutant(
        "bulk: one tool",
        ADMIN + "bulk.py",
        "    if len({row.tool for row in rows}) > 1:\n",
        "    if False:\n",
        (TESTS + "test_admin_bulk.py",),
    ),
    Mutant(
        "bulk: one risk",
        ADMIN + "bulk.py",
        "    if len({row.risk for row in rows}) > 1:\n",
        "    if False:\n",
        (TESTS + "test_admin_bulk.py",),
    ),
    Mutant(
        "bulk: a page at a time",
        ADMIN + "bulk.py",
        'if request.POST.get("select_across") == "1":',
        "if False:",
        (TESTS + "test_admin_bulk.py",),
    ),
    Mutant(
        "decision: nothing is hidden",
        "ravi_django/kernel/visible.py",
        "    if not _is_hidden(found[0]):\n",
        "    if True:\n",
        (TESTS + "test_decision_words.py",),
    ),
    Mutant(
        "decision: an argument of a field comes from its field alone",
        PAGES + "form.py",
        "        if twice := [name for name in rest if name in named]:\n",
        "        if twice := []:\n",
        (TESTS + "test_decision_words.py",),
    ),
    Mutant(
        "decision: no button that would be refused",
        PAGES + "words.py",
        "    if row.expires_at is not None and row.expires_at <= now:\n",
        "    if False:\n",
        (TESTS + "test_decision_words.py",),
    ),
    Mutant(
        "inbox: what the site's own rule refuses is not counted",
        ADMIN + "readers.py",
        "            _ask_hook(request, found)\n",
        "            pass\n",
        (TESTS + "test_decision_words.py",),
    ),
    Mutant(
        "inbox: nor listed as one's own",
        ADMIN + "readers.py",
        "    if conf.MAY_ANSWER is None:\n",
        "    if True:\n",
        (TESTS + "test_decision_words.py",),
    ),
    Mutant(
        "inbox: no NUL in a query",
        ADMIN + "base.py",
        'any("\\0" in value for _, values',
        'any("\\0\\0\\0" in value for _, values',
        (TESTS + "test_decision_words.py",),
    ),
]
