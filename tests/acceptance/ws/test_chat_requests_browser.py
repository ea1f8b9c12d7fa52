"""What agents ask of people is answered in the conversation of the chat page. Needs a Chromium."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from project.models import Invoice
from ravi_django import register, signal
from ravi_django.kernel import AgentId
from ravi_django.models import HumanRequest, Run
from tests.support import world
from tests.support.browser import elsewhere, findings
from tests.support.runs import CodeAgent
from tests.support.world import retry

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # of the static files' middleware
    pytest.mark.full,
]


MARKUP = "<img src=x onerror=\"document.title='owned'\">"


def output_of(run: Run) -> Any:
    return elsewhere(lambda: Run.objects.get(id=run.id).output)


@pytest.mark.gate
def test_a_question_is_answered_by_a_choice_in_the_conversation(demo, submitted, asking, chat_of) -> None:
    agent = asking("Which colour?", ["red", MARKUP], context=MARKUP)
    run = elsewhere(submitted, agent)
    page = chat_of(demo, run.session_id)

    page.wait_for_selector(".request .decide button")
    shown = page.inner_text(".request")
    assert "Which colour?" in shown
    assert shown.count(MARKUP) == 2  # the context and a choice, as text
    page.click(".request button:text-is('red')")

    page.wait_for_selector(".request .state:text-is('Answered by demo: red')")
    page.wait_for_selector("#status:text-is('Done')")
    assert page.locator(".request .decide").count() == 0
    assert (output_of(run), page.title().startswith("Chat")) == ("answer: red", True)
    for show in (lambda: None, page.reload):  # what an agent's own code returns, at once and later
        show()
        page.wait_for_selector(".answer p:text-is('answer: red')")
    page.goto(f"/ravi/ui/runs/{run.id}/")
    page.wait_for_selector(".output:text-is('answer: red')")


def test_a_question_of_a_sub_agent_keeps_its_answer_after_a_reload(demo, submitted, asking, chat_of) -> None:
    asks = asking("Which colour?", ["red", "blue"])

    async def story(ctx: Any, inbox: Any) -> Any:
        await ctx.ask(AgentId.parse(asks), "paint")

    agent = register(CodeAgent(story, key="browser-boss"))
    run = elsewhere(submitted, str(agent.id))
    page = chat_of(demo, run.session_id)
    page.click(".answer > .agent .request button:text-is('red')")
    page.wait_for_selector("#status:text-is('Done')")
    page.reload()
    answered = ".answer > .agent:not([open]) .request .state:text-is('Answered by demo: red')"
    page.wait_for_selector(f".user:text-is('hi') + .message-bar + {answered}", state="attached")
    elsewhere(lambda: submitted(str(agent.id), "again", session=run.session))
    page.click(".answer.live .request button:text-is('blue')")
    page.wait_for_selector(".user:text-is('again') + .message-bar + .answer .foot")
    page.reload()  # the agent has no memory: the session has no messages
    page.wait_for_selector(f".user:text-is('hi') + .message-bar + {answered}", state="attached")
    page.wait_for_selector(".user:text-is('again') + .message-bar + .answer .foot")
    assert page.locator(".answer").count() == page.locator(".user").count() == 2


def test_a_question_is_answered_in_ones_own_words_or_not_at_all(demo, submitted, asking, chat_of) -> None:
    run = elsewhere(submitted, asking("Which colour?"))
    page = chat_of(demo, run.session_id)

    page.fill(".request input", " ")
    page.press(".request input", "Enter")
    page.wait_for_selector(".request .fault")
    assert "answer is empty" in page.inner_text(".request .fault")
    page.fill(".request input", MARKUP)
    page.press(".request input", "Enter")

    page.wait_for_selector("#status:text-is('Done')")
    assert output_of(run) == f"answer: {MARKUP}"
    page.locator(".request .state", has_text=MARKUP).wait_for()


def test_a_question_to_somebody_else_is_there_to_read(demo, stranger, submitted, asking, chat_of) -> None:
    run = elsewhere(submitted, asking("Which colour?", to="user:stranger"))
    page = chat_of(demo, run.session_id)
    page.wait_for_selector(".request .state:text-is('Waits for an answer by stranger.')")
    request = elsewhere(lambda: HumanRequest.objects.get(run=run))
    assert page.locator(".request button, .request input").count() == 0

    elsewhere(lambda: world.answer(request.id, text="blue", by=stranger))

    page.wait_for_selector(".request .state:text-is('Answered by stranger: blue')")


@pytest.mark.parametrize("how", ["Approve", "Reject"])
def test_an_invoice_waits_for_staff_who_decide_in_the_same_page(demo, chat_of, how: str) -> None:
    boss = elsewhere(lambda: get_user_model().objects.create_superuser("boss"))
    page = chat_of(demo)
    page.wait_for_selector("ravi-chat:defined")
    assert page.input_value("#agent") == "react/assistant"  # of the first starter prompt
    page.click("text=Send an invoice of 100 to ACME")
    page.wait_for_selector(".request .state:text-is('Waits for approval by staff.')")
    assert '"customer": "ACME"' in page.inner_text(".request pre")
    assert page.locator(".request button").count() == 0

    session = page.evaluate("location.pathname.split('/')[4]")
    staff = chat_of(boss, session)
    staff.fill(".request input", "as agreed")
    assert findings(staff) == []
    staff.press(".request input", "Enter")  # decides nothing
    staff.click(f".request button:text-is('{how}')")

    word = {"Approve": "Approved", "Reject": "Rejected"}[how]
    for seen in (staff, page):
        seen.wait_for_selector(f".request .state:text-is('{word} by boss: as agreed')")
        seen.wait_for_selector("#status:text-is('Done')")
        assert not seen.is_visible(".request pre")  # one line is left of what was asked
    said = page.inner_text(".answer .said")
    assert ("is done: Invoice" in said) if how == "Approve" else ("did not happen: denied: as agreed" in said)
    assert elsewhere(Invoice.objects.count) == (1 if how == "Approve" else 0)
    page.reload()  # the answer is shown from its stream
    page.wait_for_selector(f".answer .request .state:text-is('{word} by boss: as agreed')")
    assert page.inner_text(".answer .request ~ .prose") == said
    assert staff.get_attribute("nav a:has-text('Approvals')", "href") == "/admin/ravi/humanrequest/"
    assert page.locator("nav a:has-text('Approvals')").count() == 0


def test_staff_read_that_another_decides_on_a_call_of_their_own(chat_of) -> None:
    page = chat_of(elsewhere(lambda: get_user_model().objects.create_user("boss", is_staff=True)))
    elsewhere(lambda: get_user_model().objects.create_user("other", is_staff=True))
    page.click("text=Send an invoice of 100 to ACME")

    page.wait_for_selector(".request .state:has-text('Another person decides on a call of your own run.')")
    assert page.locator(".request button").count() == 0


def test_a_request_that_is_opened_again_is_answered_in_its_card(demo, submitted, chat_of) -> None:
    """Its run fails while it asks, and is retried: the same request, once more."""
    fails = [True]

    async def story(ctx: Any, inbox: Any) -> Any:
        question = asyncio.ensure_future(ctx.ask_human("Which colour?"))
        await ctx.sleep_until_signal("go")
        if fails:
            question.cancel()
            raise ValueError("not yet")
        return (await question)["text"]

    agent = register(CodeAgent(story, key="browser-retried"))
    run = elsewhere(submitted, str(agent.id))
    page = chat_of(demo, run.session_id)
    page.wait_for_selector(".request .decide button")

    elsewhere(signal, run.id, "go")
    page.wait_for_selector(".request .state:text-is('Nobody waits for an answer any more.')")
    page.wait_for_selector("#status[data-kind=fault]")
    assert page.locator(".request button").count() == 0
    fails.clear()
    elsewhere(retry, run.id)
    page.reload()

    page.wait_for_selector(".request .decide button")
    assert page.locator(".request").count() == 1
    assert page.inner_text(".request .state") == "Waits for an answer by the person who began this conversation."
    page.fill(".request input", "red")
    page.press(".request input", "Enter")
    page.wait_for_selector(".request .state:text-is('Answered by demo: red')")
    page.wait_for_selector("#status:text-is('Done')")
    assert output_of(run) == "red"


def test_a_card_that_waits_says_whom_it_waits_for_now(demo, submitted, asking, chat_of) -> None:
    run = elsewhere(submitted, asking("Which colour?", to="user:demo"))
    page = chat_of(demo, run.session_id)
    page.wait_for_selector(".request .decide button")
    request = elsewhere(lambda: HumanRequest.objects.get(run=run))
    elsewhere(lambda: world.reassign(request.id, "owner"))

    page.fill(".request input", "red")
    page.press(".request input", "Enter")  # of the version that was read

    page.wait_for_selector(".request .fault")
    assert "has changed since" in page.inner_text(".request .fault")
    page.wait_for_selector(".request .state:text-is('Waits for an answer by the person who began this conversation.')")
    assert output_of(run) is None
    page.reload()
    page.wait_for_selector(".request .state:text-is('Waits for an answer by the person who began this conversation.')")
    page.fill(".request input", "blue")
    page.press(".request input", "Enter")
    page.wait_for_selector(".request .state:text-is('Answered by demo: blue')")


def test_what_was_cancelled_was_decided_by_nobody(demo, stranger, submitted, asking, chat_of) -> None:
    run = elsewhere(submitted, asking("Which colour?", to="user:stranger", timeout=3600))
    page = chat_of(demo, run.session_id)
    page.wait_for_selector(".request .state:text-is('Waits for an answer by stranger.')")
    page.route("**/ravi/requests/**", lambda route: route.abort())  # the stream alone says it

    page.click("#cancel")

    page.wait_for_selector(".request .state:text-is('Nobody waits for an answer any more.')")
