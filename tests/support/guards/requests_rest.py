"""People's inbox over REST and in a terminal: whose it is, who decides, and that what is wrong is refused."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, Mutant

API = "ravi_django/api/"
COMMANDS = "ravi_django/management/commands/"
_READ = ("tests/acceptance/api/test_api_requests.py",)
_ANSWERED = ("tests/acceptance/api/test_api_answers.py",)
_CONFLICTS = ("tests/acceptance/api/test_api_answer_conflicts.py",)
_COMMAND = ("tests/unit/management/test_request_commands.py",)

REQUESTS_REST = [
    Mutant(
        "inbox: only what one may see",
        API + "requests.py",
        "people.visible(request.user).select_related",
        "HumanRequest.objects.select_related",
        _READ,
    ),
    Mutant(
        "inbox: open to those who may answer",
        API + "request_serializers.py",
        "people.open_among(user, pending) if pending else set()",
        "{row.id for row in pending}",
        _READ,
    ),
    Mutant(
        "inbox: no query for each row",
        API + "requests.py",
        '.select_related("run", "answered_by")',
        ".all()",
        _READ,
    ),
    Mutant(
        "inbox: what was decided leaves no action",
        API + "request_serializers.py",
        "[row for row in rows if row.status == HumanRequest.Status.PENDING]",
        "list(rows)",
        _READ,
    ),
    Mutant(
        "inbox: what would be refused now is not offered",
        API + "request_serializers.py",
        "HumanRequest.objects.filter(store.in_time(), id__in=theirs)",
        "HumanRequest.objects.filter(id__in=theirs)",
        _READ,
    ),
    Mutant(
        "inbox: no NUL reaches the database",
        API + "requests.py",
        'if "\\0" in given:',
        "if False:",
        _READ,
    ),
    Mutant(
        "answer over REST: by the authenticated user",
        API + "requests.py",
        "human.answer(row, by=request.user, ",
        "human.answer(row, by=None, ",
        _ANSWERED,
    ),
    Mutant(
        "answer over REST: of two at once one is first",
        STORE + "people.py",
        "id=request.id, status=HumanRequest.Status.PENDING, version=request.version if version is None else version",
        "id=request.id",
        _CONFLICTS,
    ),
    Mutant(
        "reassign over REST: by the authenticated user",
        API + "requests.py",
        "human.reassign(id, by=request.user, ",
        "human.reassign(id, by=None, ",
        _CONFLICTS,
    ),
    Mutant(
        "answer over REST: no field that it does not know",
        API + "request_serializers.py",
        "class AnswerSerializer(StrictSerializer):",
        "class AnswerSerializer(serializers.Serializer[Any]):",
        _ANSWERED,
    ),
    Mutant(
        "answer over REST: sticky is true or false",
        API + "fields.py",
        '        if not isinstance(data, bool):\n            self.fail("invalid", input=data)\n        return data\n',
        "        return bool(super().to_internal_value(data))\n",
        _ANSWERED,
    ),
    Mutant(
        "answer: a text has an end",
        RUNTIME + "answers.py",
        "    if len(value) > MAX_TEXT:\n",
        "    if False:\n",
        _ANSWERED,
    ),
    Mutant(
        "ravi_answer: with the user's rights",
        COMMANDS + "ravi_answer.py",
        'by=user_named(options["user"], BAD_USAGE),',
        "by=None,",
        _COMMAND,
    ),
    Mutant(
        "ravi_requests: what the site's rule refuses",
        COMMANDS + "ravi_requests.py",
        "yield from (row for row in batch if row.id in theirs)",
        "yield from batch",
        _COMMAND,
    ),
    Mutant(
        "ravi_requests: no escape sequences",
        COMMANDS + "ravi_requests.py",
        "printable(_shown(row))",
        "_shown(row)",
        _COMMAND,
    ),
]
