"""What people read, in German: pages of the admin, the page behind an e-mail's link, and the e-mails."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.contrib.staticfiles import finders
from django.core import mail as outbox
from django.test import Client
from django.utils import translation

from ravi_django.models import Schedule
from ravi_django.models.names import ROW_VALUES
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.inbox import logged_in, person
from tests.support.runs import make_run
from tests.support.themed_site import make_rows
from tests.support.world import answer, known_addresses, known_tools, mail_send

pytestmark = pytest.mark.django_db(transaction=True)
SHOWN = ("title", "aria-label", "placeholder", "alt", "value")
NOT_SHOWN = ("script", "style", "pre", "code", "textarea")  # the last three are rows, and what people typed
SHAPE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+")
WORD = re.compile(r"[^\W\d_]{3,}")
NOT_OURS = {"Auth", "Token", "Tokens", "Demo", "site", "Invoices", "Search", "True", "False", "assistant"}
OF_DJANGO = {"Add link", "Change or view list link", "Model name", "- Select an option -"}  # not in German
SAME = {  # in both languages
    *("Adapter", "Admin", "Agent", "Budget", "Code", "Cron", "Digest", "Feed", "Filter", "Generation", "Hook", "JSON"),
    *("Journal", "Median", "Name", "Phase", "Release", "Revision", "SHA", "Signal", "Start", "Status", "Text"),
    *("Version", "Webhook", "idempotent", "key", "normal", "source", "type"),
}


class Texts(HTMLParser):
    """`found`: the pieces of text that a person reads, each in one line."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.hidden = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden = tag if tag in NOT_SHOWN else self.hidden
        values = dict(attrs)
        names = SHOWN if tag == "input" and values.get("type") in ("submit", "button") else SHOWN[:-1]
        self.found |= {" ".join(str(values[name]).split()) for name in names if values.get(name)}

    def handle_endtag(self, tag: str) -> None:
        self.hidden = "" if tag == self.hidden else self.hidden

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.found.add(" ".join(data.split()))


@pytest.fixture
def root() -> Client:
    return logged_in(person("root", superuser=True))


@pytest.fixture
def bilingual(settings: Any) -> Iterator[None]:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    yield
    translation.activate(settings.LANGUAGE_CODE)


def read(client: Client, address: str, language: str) -> str:
    return client.get(address, headers={"accept-language": language}).content.decode()


def pages(client: Client) -> Iterator[str]:
    """Of the admin: those of all requests, else one of each shape. A history has the words that were stored."""
    waiting, seen = ["/admin/ravi/"], set[str]()
    while waiting:
        address = waiting.pop(0)
        response = client.get(address)
        if response.status_code != 200:
            continue
        yield address
        for link in re.findall(r'href="(/admin/ravi/[^"?#]+)', response.content.decode()):
            shape = link if "/humanrequest/" in link else SHAPE.sub("*", link)
            if shape not in seen and not link.endswith("/history/"):
                seen.add(shape)
                waiting.append(link)


def words_of_rows() -> set[str]:
    """Of what is in the database and of what code says of tools: not ours to translate."""
    models = [*apps.get_app_config("ravi").get_models(), get_user_model(), Group]
    told = [str(value) for model in models for row in model._base_manager.values() for value in row.values()]
    told += [f"{tool.name} {tool.description}" for tool in known_tools()] + list(known_addresses())
    return set(WORD.findall(" ".join(told)))


def texts(page: str) -> set[str]:
    parser = Texts()
    parser.feed(page)
    return parser.found


def english_left(english: str, german: str, known: set[str]) -> list[str]:
    """The texts that are the same on both pages, less what rows hold and what is German too. A row's status alone is
    no such text."""
    fine = SAME | NOT_OURS
    both = (texts(english) & texts(german)) - OF_DJANGO
    return sorted(text for text in both if set(WORD.findall(text)) - known - fine or text in ROW_VALUES - fine)


def link_in(letter: Any) -> str:
    (found,) = re.findall(r"https://example\.com(/\S+)", letter.body)
    return str(found)


@pytest.mark.full
def test_no_page_of_the_admin_has_english_left(bilingual: None) -> None:
    make_rows()
    root = get_user_model().objects.get(username="root")
    run = make_run()
    for kind in Kind:
        asked_by(run, kind, "staff", tool="" if kind == Kind.QUESTION else "pay", text="colour")
    answer(approval_of(run).pk, "deny", reason="colour", by=root)
    client = Client()
    client.force_login(root)
    known, left, count = words_of_rows(), {}, 0

    for address in pages(client):
        count += 1
        if found := english_left(read(client, address, "en"), read(client, address, "de"), known):
            left[SHAPE.sub("*", address)] = found

    assert count > 50
    assert left == {}, "\n".join(map(str, left.items()))


def test_what_is_answered_to_a_post_is_german(bilingual: None) -> None:
    make_rows()
    run = make_run()
    mine, twin, other = approval_of(run), approval_of(run), approval_of(run, tool="refund")
    client = Client(headers={"accept-language": "de"})
    client.force_login(get_user_model().objects.get(username="root"))

    def posted(address: str, **body: Any) -> str:
        return html.unescape(client.post(f"/admin/ravi/{address}", body, follow=True).content.decode())

    chosen = {"action": "approve_selected", "_selected_action": [str(mine.pk), str(twin.pk)]}
    assert "2 Aufrufe von pay freigeben?" in posted("humanrequest/", **chosen)
    assert "Diese Aufrufe gehören zu verschiedenen Werkzeugen" in posted(
        "humanrequest/", action="deny_selected", _selected_action=[str(mine.pk), str(other.pk)]
    )
    seen = {"seen": [f"{row.pk}:1" for row in (mine, twin)]}
    assert "Freigegeben: 2 von 2 Aufrufen von pay." in posted("humanrequest/bulk/", action="approve", **seen)
    assert "Abbruch angefordert: 1 Lauf." in posted("run/", action="cancel_runs", _selected_action=[str(run.pk)])
    schedule = Schedule.objects.get()
    assert "Nichts wurde gespeichert." in posted(f"schedule/{schedule.pk}/change/", _preview="1", cron="* * * * *")


@pytest.fixture
def ann(settings: Any) -> Any:
    settings.RAVI = {**settings.RAVI, "REQUEST_EMAIL": "https://example.com"}
    return get_user_model().objects.create_user("ann", "ann@example.com", is_staff=True)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind != Kind.CLIENT_TOOL])  # no mail asks for a page
def test_the_page_behind_a_link_has_no_english_left(bilingual: None, ann: Any, kind: Kind, settings: Any) -> None:
    tool = "" if kind == Kind.QUESTION else "pay"
    request = asked_by(make_run(), kind, "staff", tool=tool, arguments={"amount": 1} if tool else None, risk="high")
    mail_send(request.pk)
    (letter,) = outbox.outbox
    client = Client()
    client.force_login(ann)
    known = words_of_rows()

    def left() -> list[str]:
        english, german = (read(client, link_in(letter), language) for language in ("en", "de"))
        assert '<html lang="de">' in german and '<html lang="en">' in english
        return english_left(english, german, known)

    assert left() == []
    refused = client.post(link_in(letter), {"action": "nothing", "version": "1"}, headers={"accept-language": "de"})
    assert "Nichts wurde entschieden. Drücken Sie eine der Schaltflächen." in refused.content.decode()
    answer(request.pk, "resolve" if kind == Kind.UNCERTAIN else "cancel", by=ann, **OUTCOME.get(kind, {}))
    assert left() == []
    settings.RAVI = {**settings.RAVI, "REQUEST_LINK_S": -1}
    assert "Dieser Link ist abgelaufen" in read(client, link_in(letter), "de")


OUTCOME: dict[Kind, dict[str, Any]] = {Kind.UNCERTAIN: {"outcome": "fail"}}


def test_a_letter_is_in_the_sites_language_whatever_the_worker_did_before(ann: Any, settings: Any) -> None:
    german, english = approval_of(make_run()), approval_of(make_run())
    settings.LANGUAGE_CODE = "de"
    with translation.override("fr"):
        mail_send(german.pk)
        assert translation.get_language() == "fr"
    settings.LANGUAGE_CODE = "en"
    with translation.override("de"):
        mail_send(english.pk)

    first, second = outbox.outbox
    assert (first.subject, second.subject) == ("Freigabe erbeten: pay", "Approval needed: pay")
    for body, told in ((first.body, "Guten Tag ann,"), (second.body, "Hello ann,")):
        assert told in body
    assert '<html lang="de">' in first.alternatives[0].content and "Risiko hoch" in first.alternatives[0].content
    assert english_left(second.body, first.body, {*WORD.findall(first.subject), *words_of_rows(), "https"}) == []


@pytest.mark.parametrize(
    ("language", "subject"),
    [("de-AT", "Freigabe"), (None, "Approval"), (1.0, "Approval"), (7, "Approval"), ("xx", "Approval")],
)
def test_a_letter_is_in_the_language_that_the_site_knows(ann: Any, settings: Any, language: Any, subject: str) -> None:
    def language_of(user: Any) -> Any:
        assert user == ann
        if language == 1.0:
            raise LookupError("no profile")
        return language

    settings.RAVI = {**settings.RAVI, "LANGUAGE_OF": language_of}

    mail_send(approval_of(make_run()).pk)

    assert outbox.outbox[0].subject.startswith(subject)


def test_a_page_in_german_leaves_nothing_for_the_next_one(bilingual: None, root: Client) -> None:
    request = approval_of(make_run())
    address = f"/admin/ravi/humanrequest/{request.pk}/change/"

    def shown(language: str) -> set[str]:
        found = texts(read(root, address, language)) | texts(read(root, "/admin/ravi/humanrequest/", language))
        return {text for text in found if not re.search(r"\d", text)}  # ages

    before = shown("en")
    shown("de")

    assert shown("en") == before and {"Your decision", "Approve", "risk high"} <= before


def test_the_script_is_told_what_it_says(bilingual: None, root: Client) -> None:
    source = str(finders.find("ravi/requests.js"))
    says = re.findall(r'(?:said\(|counted\("[^"]+", )"([^"]+)"', Path(source).read_text())
    (told,) = re.findall(r'data-words="([^"]+)"', read(root, "/admin/ravi/run/", "de"))
    words = json.loads(html.unescape(told))

    assert len(says) == 8 and {*says, "language"} == set(words)
    assert words["%s new requests."] == {"1": "%s neue Anfrage.", "2": "%s neue Anfragen.", "5": "%s neue Anfragen."}
    assert told in read(root, "/admin/ravi/", "de")
    assert "data-words" not in read(root, "/admin/ravi/run/", "en") + read(root, "/admin/ravi/", "en")


def test_an_error_about_an_answer_is_german_too(bilingual: None, root: Client) -> None:
    request = asked_by(make_run(), Kind.QUESTION, "staff", text="colour")
    german = {"accept-language": "de"}

    answered = root.post(
        f"/ravi/requests/{request.pk}/answer/", {"action": "answer", "text": " "}, "application/json", headers=german
    )

    assert answered.status_code == 400
    assert answered.json()["error"]["message"].startswith("Die Antwort ist leer. Geben Sie einen Text ein")
