"""Sources in the admin: made and checked by their kind, run as whom they should, their secrets shown once."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.test import Client

from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.models import Run, Session, Source, SourceItem
from ravi_django.testing import ScriptedModel
from ravi_django.wings.feeds.fetching.signatures import sign
from tests.support import world
from tests.support.cases import case
from tests.support.inbox import EVIL, html_of, logged_in, person, words
from tests.support.world import secrets_of

pytestmark = pytest.mark.django_db(transaction=True)

LIST, ADD = "/admin/ravi/source/", "/admin/ravi/source/add/"
ALL = ("view_source", "add_source", "change_source", "delete_source")
AGENT = "react/reader"


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    register(ReActAgent("reader", model=ScriptedModel([])))
    world.patch(monkeypatch, "adapters_by_kind", {"x": object()})


@pytest.fixture
def editor() -> Client:
    return logged_in(person("ed", may=ALL))


def form(kind: str = "feed", location: str = "https://example.com/feed.xml", **more: Any) -> dict[str, Any]:
    given = {"name": "News", "kind": kind, "location": location, "agent": AGENT, "signal": "new_source_item"}
    return {**given, "every_s": "900", "options": "{}", "enabled": "on", **more}


def change_form(source: Source, **more: Any) -> dict[str, Any]:
    return {**form(source.kind, source.location), "name": source.name, **more}


def page_of(source: Source, what: str = "change") -> str:
    return f"{LIST}{source.pk}/{what}/"


def made(**fields: Any) -> Source:
    given = {"name": "News", "kind": "feed", "location": "https://example.com/feed.xml", "agent": AGENT, **fields}
    return Source.objects.create(**given)


def errors(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200
    return {name: list(found) for name, found in response.context["adminform"].form.errors.items()}


# ---------------------------------------------------------------------------------------------------- making one


def test_a_source_runs_as_whoever_makes_it(editor: Client) -> None:
    response = editor.post(ADD, form(owner="root", tenant="acme", options='{"edits": true}'))

    assert response.status_code == 302, errors(response)
    source = Source.objects.get()
    assert (source.owner.username, source.tenant, source.options) == ("ed", "", {"edits": True})


def test_a_superuser_chooses_the_owner_or_none(root: Client) -> None:
    person("ann", staff=False)
    assert 'value="staff-"' in html_of(root.get(ADD)), "oneself, where nothing else is chosen"
    for owner in ("ann", ""):
        root.post(ADD, form(name=owner or "system", owner=owner, tenant="acme"))

    assert {source.name: str(source.owner or "") for source in Source.objects.all()} == {"ann": "ann", "system": ""}
    assert {source.tenant for source in Source.objects.all()} == {"acme"}
    assert "owner" in errors(root.post(ADD, form(owner="nobody")))


def test_what_cannot_work_is_said_at_its_field(editor: Client) -> None:
    for given, field, said in (
        ({"agent": "react/nobody"}, "agent", "agent react/nobody does not exist"),
        ({"agent": "nonsense"}, "agent", "agent nonsense does not exist"),
        *(
            ({"location": bad}, "location", "feed's URL")
            for bad in ("ftp://example.com", "javascript:alert(1)", "https://", "https://[::bad")
        ),
        ({"location": "https://user:tiger@example.com/"}, "location", "without a user name and password"),
        ({"every_s": "59"}, "every_s", "60 or more seconds"),
        ({"every_s": "-5"}, "every_s", "greater than"),
        ({"options": "[1]"}, "options", "JSON object"),
        ({"options": "{"}, "options", "valid JSON"),
        ({"options": '{"edits": "yes"}'}, "options", "edits must be true or false"),
        ({"options": '{"metadata": 5}'}, "options", "metadata must be an object"),
        ({"options": '{"api_key": "tiger"}'}, "options", "api_key looks like a key"),
        ({"options": '{"x": "' + "y" * 70_000 + '"}'}, "options", "the limit is"),
        ({"options": '{"zzz": 1}'}, "options", "no option zzz"),
        ({"options": '{"scheme": "ravi"}'}, "options", "a feed has no option scheme"),
        *(({"options": f'{{"newest": {bad}}}'}, "options", "newest must be") for bad in (0, 201, "true", 1.5)),
        ({"options": '{"max_items_a_day": "x"}'}, "options", "max_items_a_day must be"),
        ({"kind": "webhook", "location": "", "options": '{"newest": 5}'}, "options", "no option newest"),
        ({"kind": "webhook", "location": "", "options": '{"scheme": ["ravi"]}'}, "options", "scheme must be one of"),
        ({"signal": ""}, "signal", "required"),
        ({"kind": "webhook"}, "location", "Leave it empty"),
        ({"kind": "webhook", "location": "", "options": '{"id": 5}'}, "options", "id must be a path"),
        ({"kind": "adapter", "location": "os.system"}, "location", "registered: x"),
        ({"kind": "nonsense"}, "kind", "not one of"),
        ({"name": "a\0b"}, "name", "Null characters"),
    ):
        with case(given, field, said):
            found = errors(editor.post(ADD, form(**given)))
            assert said in " ".join(found[field]), found
            assert "tiger" not in str(found) and not Source.objects.exists()


def test_each_kind_can_be_made(editor: Client) -> None:
    for kind, location in (("feed", "https://example.com/a"), ("webhook", ""), ("adapter", "x")):
        response = editor.post(ADD, form(kind, location))
        assert response.status_code == 302, errors(response)

    assert set(Source.objects.values_list("kind", flat=True)) == set(Source.Kind.values)


@pytest.mark.parametrize(
    ("kind", "location", "options"),
    [
        ("feed", "https://example.com/a", {"newest": 200, "edits": True, "metadata": {}}),
        ("webhook", "", {"scheme": "github", "id": "a.b", "title": "t", "text": "x", "url": "u", "items": "i"}),
        ("webhook", "", {"keep": ["a"]}),
        ("adapter", "x", {"zzz": 1, "newest": "x", "scheme": 5}),
    ],
    ids=["feed", "webhook", "webhook keep", "adapter"],
)
def test_every_option_of_a_kind_is_taken(root, kind, location, options) -> None:
    response = root.post(ADD, form(kind, location, options=json.dumps(options)))

    assert response.status_code == 302, errors(response)
    assert Source.objects.get().options == options


# -------------------------------------------------------------------------------------------------- changing one


def test_who_is_no_superuser_changes_only_what_runs_as_themselves(editor: Client) -> None:
    mine = made(owner=get_user_model().objects.get(username="ed"))
    others = [made(owner=person("ann")), made(owner=None)]

    assert editor.post(page_of(mine), change_form(mine, name="Mine")).status_code == 302
    for source in others:
        assert "Save and continue" not in html_of(editor.get(page_of(source)))
        assert editor.post(page_of(source), change_form(source, name="Mine")).status_code == 403
        assert editor.post(page_of(source, "delete"), {"post": "yes"}).status_code == 403
    editor.post(LIST, {"action": "disable", "_selected_action": [str(one.pk) for one in [mine, *others]]})

    assert sorted(Source.objects.values_list("name", "enabled")) == [("Mine", False), ("News", True), ("News", True)]
    assert editor.post(page_of(mine, "delete"), {"post": "yes"}).status_code == 302


WRITTEN = {
    "state": {"since": 7},
    "moved_from": "https://example.com/before.xml",
    "delivered_today": {"date": "2026-11-22", "items": 2001},
}


def test_what_is_written_here_is_neither_shown_among_options_nor_typed(root: Client, operator: Any) -> None:
    source = made(options={"newest": 5, **WRITTEN}, etag="e")
    options = root.get(page_of(source)).context["adminform"].form.initial["options"]
    looked = html_of(operator("view_source").get(page_of(source)))

    typed = {"newest": 6, "state": {}, "moved_from": 5, "delivered_today": {"date": "2026-11-22", "items": "x"}}
    answers = [
        root.post(page_of(source), change_form(source, options=json.dumps(typed))),
        root.post(ADD, form(name="New", options=json.dumps(typed))),
    ]

    assert options == {"newest": 5} and "delivered_today" not in looked and "newest" in looked
    assert "https://example.com/before.xml" in looked, "under its own name"
    assert [answer.status_code for answer in answers] == [302, 302]
    source.refresh_from_db()
    assert source.options == {"newest": 6, **WRITTEN}
    Source.objects.update(failures=3)
    root.post(page_of(source), change_form(source, name="Other", options='{"newest": 6}'))
    source.refresh_from_db()
    assert (source.name, source.etag, source.failures) == ("Other", "e", 3), "as the polls have left them"
    assert Source.objects.get(name="New").options == {"newest": 6}


def test_what_is_counted_while_the_form_is_sent_is_kept(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made(options=WRITTEN)
    faults = world.source_errors

    def brings(given: Source) -> Any:
        counted = {**WRITTEN["delivered_today"], "items": 2002}  # type: ignore[dict-item]
        Source.objects.filter(pk=source.pk).update(options={**WRITTEN, "delivered_today": counted})
        return faults(given)

    world.patch(monkeypatch, "source_errors", brings)

    root.post(page_of(source), change_form(source, name="Other"))

    source.refresh_from_db()
    assert (source.name, source.options["delivered_today"]["items"]) == ("Other", 2002)


def test_another_address_begins_anew(root: Client) -> None:
    source = made(etag="e", modified="m", failures=3, error="gone", options=WRITTEN)

    root.post(page_of(source), change_form(source, location="https://example.com/other.xml"))

    source.refresh_from_db()
    assert (source.etag, source.modified, source.failures, source.error, source.next_at) == ("", "", 0, "", None)
    assert source.options == {"delivered_today": WRITTEN["delivered_today"]}, "the day is the same"


def test_another_owner_gets_no_conversation_of_the_one_before(root: Client) -> None:
    ann, ben = person("ann", staff=False), person("ben", staff=False)
    source = made(owner=ann, home=Session.objects.create(owner=ann, agent=AGENT))

    root.post(page_of(source), change_form(source, owner="ben"))

    source.refresh_from_db()
    assert (source.owner, source.home) == (ben, None)


# ----------------------------------------------------------------------------------------------------- the secret


def test_a_webhooks_secret_is_shown_once(editor: Client) -> None:
    asked = editor.post(ADD, form("webhook", ""), follow=True)
    source = Source.objects.get()
    assert asked.request["PATH_INFO"] == page_of(source, "secret")
    assert source.secret == "" and "no secret yet" in words(html_of(asked))
    editor.get(page_of(source, "secret"))
    source.refresh_from_db()
    assert source.secret == "", "looking makes none"

    shown = editor.post(page_of(source, "secret"), {"make": "1"})

    source.refresh_from_db()
    (secret,) = secrets_of(source)
    assert secret not in source.secret, "it is encrypted"
    html = html_of(shown)
    assert secret in html and "no-store" in shown["Cache-Control"]
    assert f"http://testserver/ravi/sources/{source.pk}/hook/" in html
    for address in (page_of(source), page_of(source, "secret"), LIST, page_of(source, "history"), "/admin/"):
        assert secret not in html_of(editor.get(address)), address
    assert not [entry for entry in LogEntry.objects.all() if secret in str(entry.__dict__)]
    body = b'{"id": 1}'
    headers = {"X-Ravi-Signature": sign(secret, body, int(time.time()))}
    answer = Client().post(world.path_of(source), body, content_type="application/json", headers=headers)
    assert answer.status_code == 202 and Run.objects.get().owner.username == "ed"


def test_a_secret_is_changed_without_a_gap(editor: Client) -> None:
    source = made(kind="webhook", location="", owner=get_user_model().objects.get(username="ed"))
    first = world.make_secret(source)

    editor.post(page_of(source, "secret"), {"make": "1"})
    source.refresh_from_db()
    second, old = secrets_of(source)
    assert old == first
    assert "two, the old and the new" in words(html_of(editor.get(page_of(source))))
    editor.post(page_of(source, "secret"), {"forget": "1"})

    source.refresh_from_db()
    assert secrets_of(source) == [second]


def test_only_a_webhook_has_a_secret(root: Client) -> None:
    assert root.get(page_of(made(), "secret")).status_code == 404
    assert root.get(f"{LIST}00000000-0000-0000-0000-000000000000/secret/").status_code == 404


# ---------------------------------------------------------------------------------------------------- the actions


def test_polling_now_and_switching(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    hints: list[Any] = []
    world.patch(monkeypatch, "background_hint", lambda task, *args: hints.append(task))
    later = "2030-01-01T00:00:00Z"
    due, off, hook = made(next_at=later), made(next_at=later, enabled=False), made(kind="webhook", location="")
    chosen = {"_selected_action": [str(source.pk) for source in (due, off, hook)]}

    said = html_of(root.post(LIST, {"action": "poll_now", **chosen}, follow=True))

    assert "1 to be polled. 2 unchanged" in said and hints == ["ravi.poll_sources"]
    assert {source.pk for source in Source.objects.filter(next_at=None)} == {due.pk, hook.pk}
    Source.objects.filter(pk=due.pk).update(failures=9, error="gone")
    root.post(LIST, {"action": "disable", **chosen})
    assert not Source.objects.filter(enabled=True).exists()
    root.post(LIST, {"action": "enable", **chosen})
    due.refresh_from_db()
    assert (due.enabled, due.failures, due.error, due.next_at) == (True, 0, "", None)
    assert LogEntry.objects.filter(object_id=str(due.pk)).count() == 3


# ------------------------------------------------------------------------------------------------- what is shown


def test_hostile_words_are_text(root: Client) -> None:
    source = made(name=EVIL, error=f"{EVIL}\u202e", failures=1, options={"title": EVIL})
    items = [
        SourceItem(source=source, identity="a", digest="d", title=f"{EVIL}\u202e", url="https://example.com/?<b>"),
        SourceItem(source=source, identity="b", digest="d", title="", url="javascript:alert(1)"),
    ]
    SourceItem.objects.bulk_create(items)
    addresses = [LIST, page_of(source), "/admin/ravi/sourceitem/"]
    addresses += [f"/admin/ravi/sourceitem/{item.pk}/change/" for item in SourceItem.objects.all()]

    for address in addresses:
        html = html_of(root.get(address))
        assert "<script>alert" not in html and 'href="javascript:' not in html and "\u202e" not in html, address
    listed = html_of(root.get("/admin/ravi/sourceitem/"))
    assert 'href="https://example.com/?&lt;b&gt;" rel="noopener noreferrer nofollow"' in listed


def test_a_nul_in_the_search_finds_nothing(root: Client) -> None:
    for address in (LIST, "/admin/ravi/sourceitem/"):
        assert root.get(f"{address}?q=%00").status_code in (200, 302)


def test_the_list_has_few_queries(root: Client, django_assert_max_num_queries: Any) -> None:
    ann = person("ann")
    for number in range(30):
        source = made(name=str(number), owner=ann, error="no" if number % 2 else "")
        SourceItem.objects.create(source=source, identity="a", digest="d")
    root.get(LIST)
    with django_assert_max_num_queries(12):
        root.get(LIST)
    with django_assert_max_num_queries(12):
        root.get("/admin/ravi/sourceitem/")
