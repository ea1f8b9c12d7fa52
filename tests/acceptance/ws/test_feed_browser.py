"""The demo's feed page in two browsers: one item, two readers, nobody reloads. Needs a Chromium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.sessions.models import Session as DjangoSession

from project import feeds
from ravi_django import emit, follow, submit
from ravi_django.models import Follow, Run
from tests.acceptance.api.api_support import permit
from tests.support.browser import elsewhere, findings, looks
from tests.support.curated import curated
from tests.support.runs import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # of the static files' middleware
    pytest.mark.full,
]

TOPIC = "news/science"
KEPT, PASSED = "#items .item h3", "#items .skipped summary"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202eevil"


@pytest.fixture
def publisher(demo: Any) -> Any:
    """Made before the browser starts: its loop refuses queries."""
    permit(demo, "emit_topic")
    return demo


@pytest.fixture
def feed_of(server: Any, worker: Any, new_page: Callable[..., Any]) -> Callable[..., Any]:
    """`feed_of(user, **context)`: the feed page, with that user logged in. `page.sockets` are its websockets."""

    def opened(user: Any, **options: Any) -> Any:
        page = new_page(server.url, user, **options)
        page.sockets = []
        page.route_web_socket("**/ws/ravi/**", lambda socket: page.sockets.append((socket, socket.connect_to_server())))
        page.goto("/feed/")
        page.wait_for_selector("#connection[data-state=live]")
        page.evaluate("window.opened = true")  # a reload would forget it
        return page

    return opened


def _leaves(request: Any) -> bool:
    return "example.org" in request.url  # the page itself asks for news meanwhile


def cares(page: Any, *words: str) -> None:
    page.fill("#preferences", ", ".join(words))
    page.click("#preferences-form button")
    page.wait_for_selector("#preferences-status:has-text('Saved')")


def follows(page: Any, topic: str = TOPIC) -> None:
    page.click(f"[id='follow-{topic}']")
    page.wait_for_selector(f"[id='follow-{topic}'][aria-pressed=true]")


@pytest.mark.gate
def test_two_readers_of_one_topic_have_each_their_own_feed_and_nobody_reloads(demo, stranger, feed_of) -> None:
    mine, theirs = feed_of(demo), feed_of(stranger)
    for page, word in ((mine, "telescope"), (theirs, "whales")):
        cares(page, word)
        follows(page)

    elsewhere(lambda: submit("information/science", "A telescope hears the stars. It was cold."))
    mine.wait_for_selector(f"{KEPT} >> text=A telescope hears the stars.")
    theirs.wait_for_selector(f"{PASSED} >> text=A telescope hears the stars.")
    elsewhere(lambda: submit("information/science", "The whales are back. Nobody saw them."))
    theirs.wait_for_selector(f"{KEPT} >> text=The whales are back.")
    mine.wait_for_selector(f"{PASSED} >> text=The whales are back.")

    assert "[rehearsal] it has telescope" in mine.inner_text("#items .item .reason")
    assert [page.locator("#items > li").count() for page in (mine, theirs)] == [2, 2]
    assert mine.locator("#items > li:first-child .skipped").count() == 1, "the newest comes first"
    assert all(page.evaluate("window.opened") for page in (mine, theirs))
    assert elsewhere(lambda: Run.objects.filter(agent=feeds.READER).count()) == 2, "one reader for each"


def test_an_item_leads_to_its_page_which_learns_nothing_of_this_one(demo, feed_of) -> None:
    page = feed_of(demo)
    cares(page, "comet")
    follows(page)
    page.context.route("https://example.org/**", lambda route: route.fulfill(body="there", content_type="text/plain"))
    for thing in ("comet", "whale"):
        address = f"https://example.org/{thing}?b=&amp;\u202ec"
        elsewhere(emit, TOPIC, {"title": f"A {thing} {HOSTILE}", "url": address})
    page.wait_for_selector("#items > li:nth-child(2)")
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")

    for thing, link in (("comet", f"{KEPT} a"), ("whale", "#items .skipped a")):
        with page.context.expect_page() as opened, page.context.expect_event("request", _leaves) as asked:
            page.click(link)
        opened.value.wait_for_load_state()
        assert opened.value.url == f"https://example.org/{thing}?b=&amp;%E2%80%AEc"
        assert opened.value.evaluate("window.opener === null && document.referrer === ''")
        assert "referer" not in asked.value.all_headers()
        assert page.get_attribute(link, "rel") == "noopener noreferrer"
    assert all("\\u202eevil" in text for text in page.locator("#items > li").all_inner_texts())
    assert page.locator("#items img, #items script").count() == 0


def test_an_address_of_no_web_page_is_no_link_whatever_the_server_says(demo, feed_of) -> None:
    elsewhere(lambda: curated(demo, ["kept"]))
    elsewhere(lambda: curated(demo, ["skipped"], keep=False))
    page, sent = feed_of(demo), [""]

    def answer(route: Any) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "items": [{**item, "url": sent[-1]} for item in found["items"]]})

    page.route("**/feed/items/**", answer)
    for address in ("javascript:document.title='owned'", "data:text/html,x", "https://", "x", ""):
        sent.append(address)
        page.reload()
        page.wait_for_selector(f"{KEPT} >> text=kept")
        assert page.locator("#items > li").count() == 2
        assert page.locator("#items a").count() == 0, address


def test_what_has_come_meanwhile_is_there_at_once_however_much(demo, feed_of) -> None:
    elsewhere(lambda: curated(demo, ["before"]))
    page = feed_of(demo)
    page.wait_for_selector(f"{KEPT} >> text=before")
    elsewhere(lambda: curated(demo, map(str, range(170))))

    follows(page)  # which looks once

    page.wait_for_selector("#items > li:nth-child(171):last-child", state="attached")
    assert page.inner_text("#items > li:first-child h3") == "169"


def test_what_is_saved_holds_for_the_next_item_and_is_there_after_a_reload(demo, feed_of) -> None:
    page = feed_of(demo)
    cares(page, "whales")
    page.fill("#preferences", "typed and not saved")
    follows(page)
    # A look that began before the follow may list it first; the next look writes the preferences.
    elsewhere(until, lambda: Follow.objects.get(owner=demo).metadata == {"preferences": "whales"})
    elsewhere(lambda: emit(TOPIC, "Whales sing. Loudly."))
    page.wait_for_selector(f"{KEPT} >> text=Whales sing.")

    cares(page, "not whales")
    elsewhere(lambda: emit(TOPIC, "Whales dance. Slowly."))
    page.wait_for_selector(f"{PASSED} >> text=Whales dance.")

    page.fill("#preferences", "typed and not saved")
    page.reload()
    page.wait_for_selector(f"{PASSED} >> text=Whales dance.")
    assert page.input_value("#preferences") == "not whales"
    assert page.locator("#items > li").count() == 2


def test_a_note_goes_to_those_who_follow_until_they_leave(publisher, stranger, feed_of) -> None:
    mine, theirs = feed_of(publisher), feed_of(stranger)
    follows(theirs)
    mine.fill("#note", "Come and see. Tonight.")
    mine.click("#note-form button")

    mine.wait_for_selector("#note-status:text-is('Published to 1 follower')")
    theirs.wait_for_selector(f"{KEPT} >> text=Come and see.")
    assert theirs.inner_text("#news") == "1 new: Come and see.", "also when it is the first of all"
    theirs.click(f"[id='follow-{TOPIC}']")
    theirs.wait_for_selector(f"[id='follow-{TOPIC}'][aria-pressed=false]")
    mine.fill("#note", "Nobody hears.")
    mine.click("#note-form button")

    mine.wait_for_selector("#note-status:text-is('Published to 0 followers')")
    assert mine.locator("#items > li").count() == 0


def test_a_digest_is_asked_for_by_keyboard_and_leaves_one_follow_of_two(demo, feed_of) -> None:
    page = feed_of(demo)
    page.focus(f"[id='follow-{TOPIC}']")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"[id='follow-{TOPIC}'][aria-pressed=true]")
    assert page.evaluate("document.activeElement.id") == f"follow-{TOPIC}", "the focus stays where it was"
    session = elsewhere(lambda: feeds.session_of(demo))
    elsewhere(lambda: follow(feeds.READER, TOPIC, user=demo, session=session))

    for every in ("300", "60"):
        page.reload()
        page.select_option(f"[id='every-{TOPIC}']", every)
        page.wait_for_selector(
            f"[id='every-{TOPIC}']:not([aria-busy]) option[value='{every}']:checked", state="attached"
        )
        found = elsewhere(lambda: list(Follow.objects.filter(owner=demo).values_list("session", "every_s")))
        assert found == [(None, int(every))]


def test_a_page_whose_connection_breaks_says_so_and_catches_up(demo, feed_of) -> None:
    page = feed_of(demo)
    follows(page)

    for side in page.sockets[0]:
        side.close(code=1011, reason="broken")
    page.wait_for_selector("#connection[data-state=lost]")
    elsewhere(lambda: emit(TOPIC, "A quiet comet. Gone by morning."))

    page.wait_for_selector(f"{KEPT} >> text=A quiet comet.")
    page.wait_for_selector("#connection[data-state=live]")
    assert len(page.sockets) == 2


def test_a_topic_that_is_followed_twice_is_shown_once_and_left_at_once(demo, feed_of) -> None:
    page = feed_of(demo)
    session = elsewhere(lambda: feeds.session_of(demo))
    elsewhere(lambda: follow(feeds.READER, TOPIC, user=demo, session=session))  # as a client of its own may do
    elsewhere(lambda: follow(feeds.READER, TOPIC, user=demo))
    page.reload()
    page.wait_for_selector(f"[id='follow-{TOPIC}'][aria-pressed=true]")
    elsewhere(lambda: emit(TOPIC, "A comet, once. And no more."))
    elsewhere(lambda: emit(TOPIC, "The next one. It comes behind."))
    page.wait_for_selector(f"{KEPT} >> text=The next one.")
    titles = page.locator(KEPT).all_inner_texts()

    page.click(f"[id='follow-{TOPIC}']")
    page.wait_for_selector(f"[id='follow-{TOPIC}'][aria-pressed=false]")

    assert sorted(titles) == ["A comet, once.", "The next one."]
    assert not elsewhere(lambda: Follow.objects.filter(owner=demo).exists())


def test_on_a_phone_the_links_of_staff_have_room_and_escape_gives_the_focus_back(demo, feed_of) -> None:
    elsewhere(lambda: type(demo).objects.filter(id=demo.id).update(is_staff=True, is_superuser=True))
    page = feed_of(demo, viewport={"width": 390, "height": 800})

    button, links = (page.locator(name).bounding_box() for name in ("#open-side", "nav[aria-label=Account]"))
    assert abs(button["y"] + button["height"] / 2 - links["y"] - links["height"] / 2) < button["height"] / 2
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.click("#open-side")
    page.focus("#preferences")
    page.keyboard.press("Escape")

    assert not page.is_visible("#side")
    assert page.evaluate("document.activeElement.id") == "open-side"


def test_a_page_whose_user_is_logged_out_says_so_and_is_never_anothers(demo, stranger, feed_of, cookie) -> None:
    page = feed_of(demo)
    elsewhere(DjangoSession.objects.all().delete)

    page.click(f"[id='follow-{TOPIC}']")

    page.wait_for_selector("#fault:has-text('You are logged out')")
    page.wait_for_selector("#connection[data-state=lost]")
    page.click("#preferences-form button")
    page.wait_for_selector("#preferences-status:has-text('You are logged out')")
    name, value = elsewhere(cookie, stranger).split("=", 1)
    page.context.add_cookies([{"name": name, "value": value, "url": page.url}])
    page.click(f"[id='follow-{TOPIC}']")
    page.wait_for_selector(".who:text-is('stranger')")


def test_the_page_has_no_serious_finding_in_either_scheme(demo, feed_of) -> None:
    page = feed_of(demo)
    follows(page)
    elsewhere(lambda: curated(demo, ["kept"]))
    elsewhere(lambda: curated(demo, ["skipped"], keep=False))
    page.reload()
    page.wait_for_selector("#items .skipped")
    for _scheme, width in looks(page, 1280, 390):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#open-side")
    assert findings(page) == []
