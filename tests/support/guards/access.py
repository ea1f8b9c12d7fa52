"""Who may run an agent, how often, and what the owner of a run reads of it."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, Mutant

_POLICY = "ravi_django/access.py"
_API = "ravi_django/api/"
_ACCESS = ("tests/acceptance/access/test_agent_access.py",)
_LIMITS = ("tests/acceptance/api/test_api_limits.py",)
_HIDDEN = ("tests/acceptance/access/test_hidden_tools.py",)
_SIGNALS = ("tests/acceptance/api/test_api_signals.py",)
_REPLIES = ("tests/acceptance/api/test_api_reply_signals.py",)
_PAGES = ("tests/acceptance/api/test_api_conversations.py",)
_SCHEDULES = ("tests/acceptance/admin/test_admin_schedules.py",)
_FORMS = ("tests/acceptance/access/test_admin_forms.py",)

ACCESS = [
    Mutant(
        "access: a form names nobody of another tenant",
        "ravi_django/admin/base.py",
        "    return theirs is None or _is_of(user, theirs)\n",
        "    return True\n",
        _FORMS,
    ),
    Mutant(
        "access: a tenant's budget is for its own staff",
        "ravi_django/admin/budgets.py",
        'theirs is not None and given.get("tenant", "") not in theirs:',
        "False:",
        _FORMS,
    ),
    Mutant(
        "access: the form of a source asks",
        "ravi_django/admin/source_form.py",
        "                schedules.check_owner(self.instance)\n",
        "                pass\n",
        _FORMS,
    ),
    Mutant(
        "signals: no agent waits for an answer by its name",
        RUNTIME + "waits.py",
        "    if name.startswith(PEOPLES):",
        "    if False:",
        _REPLIES,
    ),
    Mutant(
        "access: a private agent takes a permission",
        _POLICY,
        '    return access == "authenticated" or (access',
        "    return True or (access",
        _ACCESS,
    ),
    Mutant(
        "access: a rule of code says True",
        _POLICY,
        "            return access(user, agent) is True\n",
        "            return bool(access(user, agent))\n",
        _ACCESS,
    ),
    Mutant(
        "access: asked for a new run",
        _POLICY,
        "    if user is None or may_run(user, found) or (",
        "    if True or (",
        _ACCESS,
    ),
    Mutant(
        "access: asked again for a signal",
        RUNTIME + "replies.py",
        "        access.continue_run(by, run)\n",
        "",
        _ACCESS,
    ),
    Mutant(
        "access: asked again for a retry",
        _API + "runs.py",
        "        access.continue_run(request.user, found)\n",
        "",
        _ACCESS,
    ),
    Mutant(
        "access: asked again for a fork",
        _API + "runs.py",
        "        access.find(request.user, source.agent, None if source.parent_id else source.session_id)\n",
        "",
        _ACCESS,
    ),
    Mutant(
        "access: asked for a message over a socket",
        "ravi_django/ws/consumer.py",
        "idempotency_key=key, find=find)",
        "idempotency_key=key)",
        _ACCESS,
    ),
    Mutant(
        "access: asked for a delivery, on behalf of its owner",
        STORE + "bulk_delivery.py",
        'OR ({by_row}))" if by_access else ""',
        'OR ({by_row}))" if False else ""',
        _ACCESS,
    ),
    Mutant(
        "access: asked of the site's own policy for a delivery",
        _POLICY,
        "if not runs[agent, owner] or (",
        "if (",
        _ACCESS,
    ),
    Mutant(
        "access: asked for a tick, on behalf of its owner",
        RUNTIME + "schedules.py",
        "    if not access.may_run(owner, found):\n",
        "    if False:\n",
        _SCHEDULES,
    ),
    Mutant(
        "access: a priority above normal takes a permission",
        _POLICY,
        '    if not allows("may_choose_priority", user, priority):\n',
        "    if False:\n",
        _ACCESS,
    ),
    Mutant(
        "access: the form of a schedule asks for the priority",
        "ravi_django/admin/schedule_form.py",
        '        if "priority" in self.changed_data:\n',
        "        if False:\n",
        _SCHEDULES,
    ),
    Mutant(
        "access: nobody sends a signal by a reserved name",
        _POLICY,
        "    if name.startswith(RESERVED) or not allows(",
        "    if not allows(",
        _ACCESS,
    ),
    Mutant(
        "access: others' topics take a permission",
        _POLICY,
        '    if not allows("may_emit", user, topic):\n',
        "    if False:\n",
        _ACCESS,
    ),
    Mutant(
        "access: the policy decides on the journal",
        _API + "runs.py",
        "        access.check_journal(request.user, run)\n",
        "",
        _HIDDEN,
    ),
]

LIMITS = [
    Mutant(
        "limit: each call that changes something counts",
        _API + "base.py",
        "request.method not in SAFE_METHODS",
        'request.method == "POST"',
        _LIMITS,
    ),
    Mutant(
        "limit: a message over a socket counts",
        "ravi_django/ws/consumer.py",
        '    limits.count(user, "submit")\n',
        "",
        ("tests/acceptance/ws/test_ws_revocation.py",),
    ),
    Mutant(
        "limit: a queue has an end",
        RUNTIME + "limits.py",
        "    if queued >= most and",
        "    if False and",
        _LIMITS,
    ),
    Mutant(
        "limit: event streams have places",
        _API + "events.py",
        '    place = limits.open_one(request.user, "streams")\n',
        '    place = ""\n',
        _LIMITS,
    ),
    Mutant(
        "limit: sockets have places",
        "ravi_django/ws/consumer.py",
        'place = await readers().call(limits.open_one, self.user, "sockets")',
        'place = ""',
        ("tests/acceptance/ws/test_ws_revocation.py",),
    ),
    Mutant(
        "limit: a living process keeps its places",
        RUNTIME + "openings.py",
        "    limits.keep_open(opening.place for opening in found)\n",
        "",
        _LIMITS,
    ),
    Mutant(
        "limit: a cache that fails stops nobody",
        RUNTIME + "limits.py",
        "        return otherwise\n",
        "        raise\n",
        _LIMITS,
    ),
    Mutant(
        "page: the database says first how long its rows are",
        _API + "pagination.py",
        "_Weighed(queryset, weighs, self) if weighs else queryset",
        "queryset",
        _PAGES,
    ),
    Mutant(
        "page: no body is read that it does not show",
        _API + "pagination.py",
        "    if sizes is not None:\n",
        "    if False:\n",
        _PAGES,
    ),
]

HIDDEN = [
    Mutant(
        "hidden: frames of every stream",
        RUNTIME + "events.py",
        "[hidden.frame(frame) for frame in named(found)]",
        "named(found)",
        _HIDDEN,
    ),
    Mutant(
        "hidden: frames in the snapshot of a gap",
        RUNTIME + "events.py",
        '_gap(frame, whole=whole) if frame["type"] == "stream.gap" else frame',
        "frame",
        _HIDDEN,
    ),
    Mutant(
        "hidden: entries of the journal",
        _API + "serializers.py",
        '        return hidden.entry(shown, whole=hidden.sees(self.context.get("user")))\n',
        "        return shown\n",
        _HIDDEN,
    ),
    Mutant(
        "hidden: messages of a conversation",
        _API + "serializers.py",
        'turn.content if hidden.sees(self.context.get("user")) else hidden.blocks(turn.content)',
        "turn.content",
        _HIDDEN,
    ),
    Mutant(
        "hidden: requests to others",
        _API + "request_serializers.py",
        "        return hidden.request_shown(shown) if row.hides else shown\n",
        "        return shown\n",
        _HIDDEN,
    ),
    Mutant(
        "hidden: marked in the model's turn",
        RUNTIME + "llm_calls.py",
        "hidden.mark_calls(_storable(priced(_with_usage(response, paid), model.name)), ctx.toolbox)",
        "_storable(priced(_with_usage(response, paid), model.name))",
        _HIDDEN,
    ),
    Mutant(
        "hidden: a result that is read on",
        RUNTIME + "tool_calls.py",
        "    if result.hidden:\n",
        "    if False:\n",
        _HIDDEN,
    ),
    Mutant(
        "hidden: an approval that a retry opens again",
        RUNTIME + "hidden.py",
        '_PARTLY = {"llm.call": "content", "run.retried": "opened"}',
        '_PARTLY = {"llm.call": "content"}',
        _HIDDEN,
    ),
    Mutant(
        "hidden: what the tool raises",
        RUNTIME + "tool_promises.py",
        "        hidden.drop_words(error, tool)\n",
        "",
        _HIDDEN,
    ),
    Mutant(
        "hidden: the owner is not asked to confirm it",
        RUNTIME + "requests.py",
        "found = found if kind in _OWNERS_OWN else without_owner(found)",
        "found = found",
        _HIDDEN,
    ),
    Mutant(
        "hidden: it is not put to the owner either",
        RUNTIME + "reassignment.py",
        "and hidden.is_about(request):",
        "and False:",
        _HIDDEN,
    ),
    Mutant(
        "hidden: rows of an export",
        RUNTIME + "erasing.py",
        "Hiding(() if hidden.sees(user) else scope.runs)",
        "Hiding(())",
        _HIDDEN,
    ),
    Mutant(
        "hidden: a stream ends with its reader's place among the staff",
        RUNTIME + "openings.py",
        " or (opening.whole and not hidden.sees(user)):",
        ":",
        _HIDDEN,
    ),
]

KEYS = [
    Mutant(
        "key: of a signal, is one user's",
        RUNTIME + "replies.py",
        'scope_of(by, f"signal:{run.id}"',
        'scope_of(None, f"signal:{run.id}"',
        _SIGNALS,
    ),
    Mutant(
        "key: of another signal is a conflict",
        STORE + "replies.py",
        "    if known not in (None, (name, payload)):\n",
        "    if False:\n",
        _SIGNALS,
    ),
    Mutant(
        "key: of an answer is kept",
        RUNTIME + "replies.py",
        "            store.keep_key(run.id, name, kept, key)\n",
        "            pass\n",
        _REPLIES,
    ),
    Mutant(
        "reply: what a person sent before the question is known as theirs",
        STORE + "replies.py",
        '    return f"{_PERSONS}{digest}"[:64]\n',
        "    return digest[:64]\n",
        _REPLIES,
    ),
]
