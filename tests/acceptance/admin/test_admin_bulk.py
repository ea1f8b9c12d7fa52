"""Several approvals at once: of one tool, at one risk, that one may decide, and each by itself."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry

from ravi_django.models import HumanRequest
from tests.support import world
from tests.support.cases import case, queries_of
from tests.support.inbox import INBOX, ask, html_of, person, words
from tests.support.runs import make_run
from tests.support.world import TOP_UP

pytestmark = pytest.mark.django_db(transaction=True)


def select(client: Any, *requests: HumanRequest, action: str = "approve_selected", **more: Any) -> Any:
    chosen = {"action": action, "_selected_action": [str(request.pk) for request in requests], **more}
    return client.post(INBOX, chosen, follow=True)


def confirm(client: Any, *requests: HumanRequest, action: str = "approve", **more: Any) -> Any:
    seen = [f"{request.pk}:{request.version}" for request in requests]
    return client.post(f"{INBOX}bulk/", {"action": action, "seen": seen, "reason": "", **more}, follow=True)


def pending() -> int:
    return HumanRequest.objects.filter(status="pending", version=1).count()


@pytest.mark.parametrize(("action", "word"), [("approve", "Approved"), ("deny", "Rejected")])
def test_a_confirmation_lists_each_and_then_each_is_decided(client: Any, action: str, word: str) -> None:
    requests = [ask(arguments={"customer": name, "amount": 5}) for name in ("ACME", "Bolt")]

    shown = html_of(select(client, *requests, action=f"{action}_selected"))
    assert pending() == 2
    assert "ACME" in shown and "Bolt" in shown and "arguments differ" in shown
    assert "arguments differ" not in html_of(select(client, ask(), ask()))
    HumanRequest.objects.exclude(pk__in=[request.pk for request in requests]).delete()
    assert all(f'value="{request.pk}:1"' in shown for request in requests)

    told = words(html_of(confirm(client, *requests, action=action, reason="month's end")))
    assert f"{word}: 2 of 2 calls of send_invoice" in told
    for request in requests:
        request.refresh_from_db()
        assert request.answer == {"action": action, "reason": "month's end", "by": "fay"}
    assert LogEntry.objects.count() == 2


def mixed(how: str) -> list[HumanRequest]:
    others = {
        "tools": lambda: ask(tool="wipe"),
        "risks": lambda: ask(risk="critical"),
        "kinds": lambda: ask("question", tool="send_invoice", risk="high"),
        "budget": lambda: ask(tool=TOP_UP, arguments={"max_turns": 3}),
    }
    return [ask(), others[how]()]


WORDS = {
    "tools": "calls are of different tools",
    "risks": "calls have different risks",
    "kinds": "Only approvals of tool calls",
    "budget": "Only approvals of tool calls",
}


@pytest.mark.parametrize("how", WORDS)
def test_a_mixed_selection_is_refused_with_words(client: Any, how: str) -> None:
    requests = mixed(how)

    assert WORDS[how] in words(html_of(select(client, *requests)))
    assert WORDS[how] in words(html_of(confirm(client, *requests)))
    assert pending() == 2


def test_others_requests_and_closed_ones_are_refused(client: Any) -> None:
    fay = HumanRequest.owner.field.related_model.objects.get()
    own = ask(run=make_run(owner=fay), to="group:directors")
    closed = ask()
    world.answer(closed.pk, "deny")

    assert "1 of these are assigned to others" in words(html_of(select(client, ask(), own)))
    assert "already answered" in words(html_of(select(client, ask(), closed)))
    told = words(html_of(confirm(client, own)))
    assert "you may not answer it" in told and "Approved" not in told
    own.refresh_from_db()
    assert own.status == "pending"


def test_what_somebody_decided_meanwhile_stays_and_is_told(client: Any) -> None:
    first, second, third = ask(), ask(), ask()
    person("gus", "finance")
    world.answer(second.pk, "deny", by=person("hal", "finance"), reason="no")
    world.reassign(third.pk, "staff")

    told = words(html_of(confirm(client, first, second, third)))

    assert "Approved: 1 of 3" in told
    assert "hal decided first" in told and "This request has changed since" in told
    second.refresh_from_db(), third.refresh_from_db()
    assert (second.answer["action"], third.status) == ("deny", "pending")


def test_what_was_not_confirmed_is_not_decided(client: Any) -> None:
    request, other = ask(), ask(to="group:directors")

    for seen in ([], ["x:1"], ["{id}"], ["{id}:"], ["{id}:x"], ["{other}:1"], ["{id}:1", "{other}:1"]):
        with case(seen):
            sent = [text.format(id=request.pk, other=other.pk) for text in seen]
            client.post(f"{INBOX}bulk/", {"action": "approve", "seen": sent})
            assert pending() == 2


def test_a_get_and_an_unknown_action_and_all_of_all_pages_decide_nothing(client: Any) -> None:
    request = ask()
    assert "one page at a time" in words(html_of(select(client, request, select_across="1")))

    assert client.get(f"{INBOX}bulk/?action=approve&seen={request.pk}:1").status_code == 405
    assert confirm(client, request, action="destroy").status_code == 200
    assert pending() == 1


def test_the_confirmation_costs_the_same_for_many(client: Any) -> None:
    few, many = [ask() for _ in range(2)], [ask() for _ in range(40)]
    select(client, *few)

    assert queries_of(lambda: select(client, *few)) == queries_of(lambda: select(client, *many))
