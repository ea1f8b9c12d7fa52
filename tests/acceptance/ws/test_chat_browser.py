"""The chat page in a browser: answers as they stream, the list of conversations, files, runs that wait. Needs a
Chromium."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from project.process import wait_until
from ravi_django import register, signal, submit
from ravi_django.models import Run, Turn
from tests.support import world
from tests.support.browser import elsewhere, looks
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent
from tests.support.world import retry

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # of the static files' middleware
    pytest.mark.full,
]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
GIVEN = """([type, name, data, text]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name, { type: "image/png" }));
  if (text) transfer.items.add(text, "text/plain");
  const how = { bubbles: true, composed: true, cancelable: true, dataTransfer: transfer, clipboardData: transfer };
  const given = type === "drop" ? new DragEvent(type, how) : new ClipboardEvent(type, how);
  document.querySelector("ravi-chat").shadowRoot.getElementById("text").dispatchEvent(given);
}"""
MARKUP = "<img src=x onerror=\"document.title='owned'\">"


def output_of(run: Run) -> Any:
    return elsewhere(lambda: Run.objects.get(id=run.id).output)


def test_the_page_fits_each_screen_and_the_policy_stops_nothing(chat_of) -> None:
    boss = elsewhere(lambda: get_user_model().objects.create_superuser("boss"))
    page = chat_of(boss)
    received: list[int] = []
    page.on("response", lambda response: received.append(len(response.body())))
    page.goto("/ravi/ui/chat/?agent=react/assistant")
    page.wait_for_selector("ravi-chat:defined")
    assert sum(received) < 220_000
    page.click("text=What is 12 * (3 + 4)?")
    page.wait_for_selector("#status:text-is('Done')")
    assert "/ravi/ui/chat/" in page.url

    for _, width in looks(page, 390, 1280):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 390, "height": 800})
    page.click("#open-sessions")
    page.click("#sessions button:text-is('Close')")
    assert not page.is_visible("#sessions")
    assert page.locator("#open-sessions:focus").count() == 1
    page.set_viewport_size({"width": 1280, "height": 800})
    page.click("text=Rename…")
    page.fill("#session-list input", MARKUP)
    page.press("#session-list input", "Enter")
    page.wait_for_selector(f".talk:has-text({json.dumps(MARKUP)})")
    page.click("text=Delete…")
    page.click("text=Delete this conversation")
    page.wait_for_selector("#welcome:not([hidden])")
    assert (page.errors, page.console) == ([], [])


SAID = """# Returns

A <script>document.title = 'owned'</script> and <b onclick="x()">bold</b>, **strong**, [ok](https://a.test/x),
[bad](javascript:alert(1)), ![secret](https://evil.test/?q=1)

<img src=x onerror="document.title='owned'">

1. one

   - [x] nested
2. two

| Carrier | Broken |
|---|--:|
| Nord | 6 |

```python
print("<b>")
```

See [the note][n].

[n]: https://a.test/n
"""
STREAMED = """async (text) => {
    const { Prose } = await import('/static/ravi/ui/markdown.js');
    const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const [whole, grown] = [new Prose(), new Prose()];
    whole.set(text);
    for (let at = 0; at < text.length; at += 7) { grown.append(text.slice(at, at + 7)); await painted(); }
    const kept = grown.root.firstChild;
    grown.set(text);
    await painted();
    return { same: whole.root.innerHTML === grown.root.innerHTML, html: whole.root.innerHTML, kept: kept.tagName };
}"""


@pytest.mark.gate
def test_markdown_grows_block_by_block_and_html_of_a_model_stays_text(demo, submitted, paced, chat_of) -> None:
    paced.words[:] = [SAID[:200], SAID[200:]]
    run = elsewhere(submitted, "react/paced")
    page = chat_of(demo, run.session_id)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))

    paced.let(1)
    page.wait_for_selector(".answer.live .prose h1:text-is('Returns')")
    paced.let_all()

    page.wait_for_selector(".answer .prose .table td:text-is('Nord')")
    page.wait_for_selector("#status:text-is('Done')")
    shown = page.inner_text(".answer .prose")
    assert "<script>document.title = 'owned'</script>" in shown and "<img src=x" in shown
    assert page.inner_text(".prose pre") == 'print("<b>")\n'
    assert page.locator(".prose :is(script, img, b, input, form, [style], [id], [onclick])").count() == 0
    assert page.locator(".prose a").evaluate_all("links => links.map(link => link.getAttribute('href'))") == [
        "https://a.test/x",
        *(None,),
        "https://evil.test/?q=1",
        "https://a.test/n",
    ]
    grown = page.evaluate(STREAMED, SAID)
    assert (grown["same"], grown["kept"]) == (True, "H1"), grown["html"]
    assert page.title().startswith("Chat") and not any("evil.test" in url for url in requested)
    assert (page.errors, page.console) == ([], [])


INERT = """async () => {
    const { RequestCard } = await import('/static/ravi/ui/requests.js');
    const row = { id: 1, kind: 'approval', status: 'pending', may_answer: true, to: 'owner', version: 1 };
    const card = new RequestCard({ get: async () => row }, row);
    document.body.append(card.root);
    while (!card.controls) await new Promise(requestAnimationFrame);
    const begun = performance.now();
    const approve = card.controls.querySelector('.primary');
    const first = approve.inert;
    while (approve.inert) await new Promise(requestAnimationFrame);
    return [first, performance.now() - begun > 400];
}"""


def test_a_team_works_in_cards_and_answers_again_and_a_draft_outlives_a_reload(demo, chat_of) -> None:
    page = chat_of(demo)
    page.goto("/ravi/ui/chat/?agent=orchestrator/team")
    page.wait_for_selector("ravi-chat:defined")
    page.keyboard.type("/NOTE")
    assert page.locator("#palette li").count() == 1
    page.keyboard.press("Enter")
    prompt = page.input_value("#text")
    assert prompt == "Calculate 12 * (3 + 4), and write a note about it"
    page.reload()
    page.wait_for_selector("ravi-chat:defined")
    assert page.input_value("#text") == prompt

    page.press("#text", "Enter")

    page.wait_for_selector(".foot:has-text('tokens')")
    cards = page.locator(".answer > .agent")
    assert sorted(cards.locator("> summary .name").all_inner_texts()) == ["react/editor", "react/researcher"]
    assert cards.locator(".tool .name").text_content() == "calculator"
    assert cards.locator("> summary .state.completed").count() == 2 and page.locator(".agent[open]").count() == 0
    assert page.inner_text("#announce").startswith("Answer complete. ")
    session = page.evaluate("location.pathname")
    page.click(".foot button:text-is('Bad')")
    page.wait_for_selector(".foot [aria-pressed=true]:text-is('Bad')")
    page.reload()
    page.wait_for_selector(".foot [aria-pressed=true]:text-is('Bad')")
    assert sorted(cards.locator("> summary .name").all_inner_texts()) == ["react/editor", "react/researcher"]
    page.click("text=Answer again")
    page.wait_for_selector(
        f".user:has-text('{prompt}') + .message-bar:has-text('2/2') + .answer .foot:has-text('tokens')"
    )
    assert page.evaluate("location.pathname") != session
    page.click("text=Edit…")
    page.locator(".user").wait_for(state="hidden")  # the box stands in its place
    assert page.input_value(".edit textarea") == prompt
    page.fill(".edit textarea", "Calculate 2 * (3 + 4)")
    page.press(".edit textarea", "Enter")
    page.wait_for_selector(".user:text-is('Calculate 2 * (3 + 4)') + .message-bar + .answer .foot:has-text('tokens')")
    assert page.locator(".talk").count() == 1, "forks of each other are one entry"
    for place in (2, 1):
        page.click("[aria-label='Version before']")
        page.wait_for_selector(f".user:has-text('{prompt}') + .message-bar:has-text('{place}/3')")
    assert page.evaluate("location.pathname") == session
    assert page.locator(".talk[aria-current=page]").count() == 1
    for place in (2, 3):
        page.click("[aria-label='Next version']")
        page.wait_for_selector(f".message-bar:has-text('{place}/3')")
    here = page.evaluate("location.pathname.split('/')[4]")
    elsewhere(lambda: submit("react/assistant", "What is 5 * 5?", session=here, user=demo))
    page.wait_for_selector(".user:text-is('What is 5 * 5?') + .message-bar + .answer .foot:has-text('tokens')")
    page.goto("/ravi/ui/chat/")
    page.wait_for_selector("ravi-chat:defined")
    assert (page.input_value("#text"), page.evaluate(INERT)) == ("", [True, True])


def test_a_message_that_is_sent_during_an_answer_is_answered_next(demo, submitted, paced, chat_of) -> None:
    run = elsewhere(submitted, "react/paced")
    page = chat_of(demo, run.session_id)
    paced.let(3)
    page.wait_for_selector(".answer.live .prose:has-text('w2')")
    assert page.locator("#cancel").is_visible() and page.locator("#send").is_hidden()

    page.fill("#text", "And then?")
    page.press("#text", "Enter")
    page.wait_for_selector(".user .queued")
    page.reload()  # the server knows both messages
    page.wait_for_selector(".user:text-is('hi') + .message-bar + .answer.live .prose:has-text('w2')")
    page.wait_for_selector(".answer + .user:has-text('And then?') .queued")
    page.fill("#text", "Be brief.")
    page.select_option("#busy", "steer")
    page.press("#text", "Enter")
    page.wait_for_selector(".answer.live .user:has-text('Be brief.')")
    paced.let_all()

    page.wait_for_selector(".user:has-text('And then?') + .message-bar + .answer .prose:has-text('w11')")
    page.wait_for_selector(".user:has-text('And then?') + .message-bar + .answer .foot")
    assert page.locator(".queued").count() == 0 and page.locator(".prose:has-text('w11')").count() == 3
    page.reload()
    page.wait_for_selector(
        ".user:text-is('hi') + .message-bar + .answer > .prose + .user:text-is('Be brief.') + .prose"
    )
    assert page.locator(".answer").count() == 2 and page.locator(".prose:has-text('w11')").count() == 3


def test_a_site_that_rejects_a_message_during_an_answer_says_so(demo, submitted, paced, chat_of, settings) -> None:
    settings.RAVI = {**settings.RAVI, "ON_BUSY": "reject"}
    page = chat_of(demo, elsewhere(submitted, "react/paced").session_id)
    paced.let(2)
    page.wait_for_selector(".answer.live .prose:has-text('w1')")

    page.fill("#text", "And then?")
    page.press("#text", "Enter")

    page.wait_for_selector("#status:has-text('Not sent')")
    assert (page.input_value("#text"), page.locator("#busy, .queued").count()) == ("And then?", 0)


def test_a_stopped_answer_says_so_also_when_a_later_one_has_ended(demo, submitted, paced, chat_of) -> None:
    run = elsewhere(submitted, "react/paced")
    page = chat_of(demo, run.session_id)
    paced.let(2)
    page.wait_for_selector(".answer.live .prose:has-text('w1')")
    page.click("text=Rename…")
    page.press("#session-list input", "Escape")  # of this field, as those below
    page.wait_for_selector("text=Rename…")
    page.press("#find", "Escape")
    page.locator("#text").dispatch_event("keydown", {"key": "Escape", "isComposing": True})
    assert page.locator("#cancel:enabled").is_visible()
    page.press("#text", "Escape")
    page.wait_for_selector(".answer .note:text-is('Stopped.')")
    paced.let_all()
    page.fill("#text", "And then?")
    page.press("#text", "Enter")
    page.wait_for_selector(".user:has-text('And then?') + .message-bar + .answer .foot")

    page.reload()

    page.wait_for_selector(".user:has-text('And then?') + .message-bar + .answer .foot")
    page.wait_for_selector(".user:text-is('hi') + .message-bar + .answer .note:text-is('Stopped.')")
    assert page.locator(".answer").first.locator(".prose:has-text('w1')").count() == 1


def test_a_long_conversation_opens_at_its_end_and_older_messages_come_on_scrolling_up(demo, submitted, chat_of) -> None:
    run = elsewhere(submitted, "react/assistant", "What is 6 * 7?")
    page = chat_of(demo, run.session_id)
    page.wait_for_selector(".foot")
    said = page.inner_text(".answer .prose")
    page.reload()
    page.wait_for_selector(".answer .foot")
    assert page.inner_text(".answer .prose") == said and page.locator(".answer .tool .num").count() == 1
    elsewhere(world.prune, {"streams": 0.0})
    page.reload()
    page.wait_for_selector(".answer .foot")  # from the messages
    assert page.inner_text(".answer .prose") == said

    texts = [(role, f"{role} {number}") for number in range(1_000) for role in ("user", "assistant")]
    of = {"session_id": run.session_id, "agent": run.agent}
    turns = [
        Turn(**of, position=at - 2_000, role=role, content=[{"type": "text", "text": text}])
        for at, (role, text) in enumerate(texts)
    ]
    elsewhere(Turn.objects.bulk_create, turns)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.reload()
    page.wait_for_selector(".user:text-is('What is 6 * 7?') + .message-bar + .answer .foot")
    assert page.locator(".user").count() == 24 and sum("/messages/" in url for url in requested) == 1

    place = "it => it.getBoundingClientRect().y"
    oldest = page.locator(".user:text-is('user 977')")
    before = oldest.evaluate(f"it => {{ it.closest('#scroller').scrollTo(0, 0); return ({place})(it); }}")
    page.wait_for_selector(".user:text-is('user 952')")
    assert abs(oldest.evaluate(place) - before) < 2
    assert page.locator(".user").count() == 49


def test_a_slow_message_stays_in_the_conversation_that_it_was_sent_in(demo, submitted, chat_of) -> None:
    first, other = (elsewhere(submitted, "react/assistant", text) for text in ("first", "other"))
    page = chat_of(demo, first.session_id)
    page.wait_for_selector(".foot")
    held: list[Any] = []
    page.route(
        "**/ravi/runs/", lambda route: held.append(route) if route.request.method == "POST" else route.continue_()
    )
    for text in ("one", "two"):
        page.click(f".talk[href*='{first.session_id}']")
        page.wait_for_selector(".user:text-is('first') + .message-bar + .answer .foot")
        with page.expect_request(lambda request: request.method == "POST"):
            page.fill("#text", text)
            page.press("#text", "Enter")
        page.click(f".talk[href*='{other.session_id}']")
        page.wait_for_selector(".user:text-is('other') + .message-bar + .answer .foot")
        if text == "one":
            with page.expect_response("**/ravi/sessions/?*"):  # the list is refreshed
                held.pop().continue_()
        else:
            held.pop().fulfill(status=409, json={"error": {"message": "no"}})
            page.wait_for_selector("#status:has-text('Not sent')")
        assert str(other.session_id) in page.url and page.input_value("#text") == ""
        assert page.locator(".user").count() == 1
    page.click(f".talk[href*='{first.session_id}']")
    page.wait_for_selector(".user:text-is('one') + .message-bar + .answer .foot")
    assert page.input_value("#text") == "two"


def test_a_refresh_of_the_list_loses_no_click(demo, submitted, chat_of) -> None:
    first, other = (elsewhere(submitted, "react/assistant", text) for text in ("first", "other"))
    page = chat_of(demo, first.session_id)
    page.wait_for_selector(".foot")
    page.hover(f".talk[href*='{other.session_id}']")
    page.mouse.down()
    with page.expect_response("**/ravi/sessions/?*") as refreshed:
        page.locator("#find").dispatch_event("input")
    refreshed.value.finished()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")  # it is shown
    page.mouse.up()
    page.wait_for_selector(".user:text-is('other') + .message-bar + .answer .foot")


def test_the_tasks_of_a_conversation_are_a_card_that_changes_while_the_agent_works(demo, submitted, chat_of) -> None:
    async def story(ctx: Any, inbox: Any) -> Any:
        for title in ("Find the order", MARKUP):
            await ctx.tool("board_add", title=title)
        await ctx.tool("board_update", number=1, status="doing")
        await ctx.sleep_until_signal("go")
        await ctx.tool("board_update", number=1, status="done")
        return "all done"

    agent = register(CodeAgent(story, key="browser-board", tools=world.TaskBoard().tools))
    run = elsewhere(submitted, str(agent.id))
    page = chat_of(demo, run.session_id)
    page.wait_for_selector(".board li:has-text('Find the order') .state.running:text-is('in progress')")
    assert page.inner_text(".board summary") == "Tasks 0 of 2 done"
    elsewhere(signal, run.id, "go")
    page.wait_for_selector(".board summary:has-text('1 of 2 done')")
    page.wait_for_selector(".foot")
    page.reload()
    page.wait_for_selector(".answer .board li .state.completed")
    assert (page.locator(".board").count(), page.inner_text(".board li + li .title")) == (1, MARKUP)


def test_an_answer_is_followed_until_its_reader_scrolls_up(demo, submitted, paced, chat_of) -> None:
    paced.words[:] = [f"Paragraph {number}. " + "More words. " * 20 + "\n\n" for number in range(40)]
    run = elsewhere(submitted, "react/paced")
    page = chat_of(demo, run.session_id)
    paced.let(15)
    page.wait_for_selector(".answer.live p:has-text('Paragraph 14.')")
    scroller = page.locator("#scroller")
    left = "it => it.scrollHeight - it.scrollTop - it.clientHeight"
    assert wait_until(lambda: scroller.evaluate(left) < 2, BOUND_S)
    assert scroller.evaluate("it => it.scrollTop") > 100

    scroller.hover()
    page.mouse.wheel(0, -40)
    assert wait_until(lambda: scroller.evaluate(left) > 20, BOUND_S)
    place = scroller.evaluate("it => it.scrollTop")
    paced.let_all()
    page.wait_for_selector("#status:text-is('Done')")

    assert scroller.evaluate("it => it.scrollTop") == place
    page.click("#to-end")
    assert wait_until(lambda: scroller.evaluate(left) < 2, BOUND_S)


def test_older_conversations_come_from_this_host_also_behind_a_proxy(demo, submitted, chat_of) -> None:
    elsewhere(submitted)
    page = chat_of(demo)
    row = {"id": "0", "title": "older", "updated_at": "2026-01-01T00:00:00Z"}
    pages = {"": {"results": [], "next": "http://inside.invalid/ravi/sessions/?cursor=b"}, "b": {"results": [row]}}
    page.route("**/sessions/*", lambda route: route.fulfill(json=pages[route.request.url.partition("cursor=")[2]]))
    page.reload()

    page.click("text=Older conversations")

    page.wait_for_selector(".talk:has-text('older')")


def test_files_are_attached_pasted_dropped_and_shown(demo, paced, chat_of, settings, tmp_path) -> None:
    settings.MEDIA_ROOT = tmp_path
    paced.let_all()
    page = chat_of(demo)
    page.wait_for_selector("ravi-chat:defined")
    page.select_option("#agent", "react/paced")
    page.set_input_files("#files", {"name": "tool.exe", "mimeType": "image/png", "buffer": b"MZ\x90\0"})
    page.wait_for_selector("#status[data-kind='fault']:has-text('tool.exe')")
    assert "tool.exe" in page.get_by_role("alert").inner_text()
    page.set_input_files("#files", {"name": "<b>.txt", "mimeType": "text/html", "buffer": MARKUP.encode()})
    page.wait_for_selector("#attached .file:text-is('<b>.txt (1 kB)')")
    for how in ("paste", "drop"):
        page.evaluate(GIVEN, [how, f"{how}.png", PNG])
        page.wait_for_selector(f"#attached img[alt='{how}.png']")
    page.evaluate(GIVEN, ["paste", "cells.png", PNG, "a\tb"])  # of a spreadsheet
    assert page.locator("#attached li").count() == 3
    page.click("#attached button[aria-label='Remove drop.png']")

    page.press("#text", "Enter")  # without a text

    page.wait_for_selector(".answer .foot")
    assert page.locator("#attached li").count() == 0
    for _ in range(2):  # as it was sent, and as the server has it
        page.wait_for_selector(".user .file:text-is('<b>.txt (1 kB)')")
        loaded = "() => document.querySelector('ravi-chat').shadowRoot.querySelector('.user img')?.naturalWidth === 1"
        page.wait_for_function(loaded)
        page.reload()
    with page.expect_download() as download:
        page.click(".user .file:text-is('<b>.txt (1 kB)')")
    assert download.value.path().read_bytes() == MARKUP.encode()
    (run,) = elsewhere(lambda: list(Run.objects.all()))
    assert elsewhere(lambda: run.session.files.count()) == 2


def test_a_blocked_run_is_on_hold_for_a_customer_and_explained_to_staff(demo, submitted, asking, chat_of) -> None:
    texts = {}
    for is_staff in (False, True):
        elsewhere(lambda demo=demo, is_staff=is_staff: type(demo).objects.filter(pk=demo.pk).update(is_staff=is_staff))
        run = elsewhere(submitted, asking("Which colour?", ["red", "blue"]))
        page = chat_of(demo, run.session_id)
        page.wait_for_selector(".request .decide button")

        async def changed(ctx: Any, inbox: Any) -> Any:
            await ctx.sleep_until_signal("paid")

        elsewhere(lambda changed=changed: register(CodeAgent(changed, key="browser-asks"), replace=True))
        page.click(".request .decide button:has-text('red')")
        page.wait_for_selector(".answer .ravi-error")

        texts[is_staff] = page.inner_text(".answer .ravi-error")
        assert "On hold" in page.inner_text("#status")
        asking("Which colour?", ["red", "blue"])
        elsewhere(retry, run.id)
        page.wait_for_selector(".answer:not(.live)")
        assert (output_of(run), page.locator(".answer .ravi-error").count()) == ("answer: red", 0)

    assert texts[False] == "On hold: the team of this site has to look at it first. Nothing is lost."
    assert "Three ways out: deploy the earlier code" in texts[True]
    assert texts[True].endswith("Show the run")


def test_a_run_that_starts_later_says_when_and_leaves_the_conversation_free(demo, submitted, asking, chat_of) -> None:
    run = elsewhere(lambda: submitted(asking("Which colour?", ["red", "blue"]), start_at=3600))
    page = chat_of(demo, run.session_id)

    page.wait_for_selector(".queued")
    assert "Starts at" in page.inner_text(".queued")
    page.fill("#text", "now")
    page.press("#text", "Enter")
    page.click(".request .decide button:has-text('red')")
    page.wait_for_selector(".answer:not(.live)")
    assert elsewhere(lambda: Run.objects.filter(session=run.session_id, status="completed").count()) == 1
