"""The patterns of `examples/`, each run to its end: with a scripted model and a clock that moves by hand, and as they
are started from the command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples import approval, escalation, feed, metrics, research, router, supervisor, writer_critic
from examples.seeds import cases, delegate, feed as seeds_feed, loop, proxy
from ravi_django import register, signal, submit
from ravi_django.kernel import Agent, ToolUseBlock, TransientError, Usage
from ravi_django.kernel.event_types import run_completed
from ravi_django.models import HumanRequest, JournalEntry, Publication, Run, Status
from ravi_django.testing import FakeClock, ScriptedModel, journal_of, run_until_idle
from tests.support import forks, template, world
from tests.support.patience import seconds

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "dispatch_send")


def begin(team: list[Agent], text: str, **options: Any) -> Run:
    for agent in team:
        register(agent)
    run = submit(team[0], text, **options)
    run_until_idle()
    run.refresh_from_db()
    return run


def saying(answer: Callable[[str], Any]) -> ScriptedModel:
    """A model that answers by what it was told last."""
    return ScriptedModel([lambda messages, options: answer(messages[-1].text)] * 3)


def test_the_router_is_out_of_the_way() -> None:
    def say(messages: Any, options: Any) -> Any:
        if options.tools:
            return ToolUseBlock(tool_name="handoff_billing", arguments={"task": messages[-1].text}, call_id="c1")
        return f"We look into it: {messages[-1].text}"

    run = begin(router.router(ScriptedModel([say])), "The invoice is wrong.")

    assert (run.status, run.agent) == (Status.COMPLETED, "react/billing")
    assert run.output == "We look into it: The invoice is wrong."
    assert not Run.objects.filter(parent=run).exists()


def test_research_goes_on_without_the_side_that_failed() -> None:
    def say(text: str) -> Any:
        if "\n" in text:
            return f"All in all: {text}"
        return RuntimeError("no such source") if text.endswith("costs.") else text.split("Say ")[1]

    run = begin(research.research(saying(say)), "A cat?")

    assert run.output == (
        "All in all: A cat?\n"
        "what speaks for it: what speaks for it.\n"
        "what speaks against it: what speaks against it.\n"
        "what it costs: (nothing: target_failed)"
    )
    assert Run.objects.filter(parent=run, agent="react/looker").count() == 3


@pytest.mark.parametrize(("good_at", "rounds"), [(1, 1), (2, 2), (9, 3)])
def test_a_draft_is_sent_back_until_it_is_good_but_not_for_ever(good_at: int, rounds: int) -> None:
    drafts: list[str] = []

    def say(text: str) -> str:
        if text.startswith("Write"):
            drafts.append(f"draft {len(drafts) + 1}")
            return drafts[-1]
        return "Good as it is." if text.endswith(f"draft {good_at}") else "Too long."

    run = begin(writer_critic.writer_critic(saying(say)), "A note")

    assert run.output == f"draft {rounds}" == drafts[-1]
    assert len(drafts) == rounds


def test_what_the_model_knows_needs_nobody() -> None:
    run = begin(escalation.escalation(ScriptedModel("At nine.")), "When do you open?")

    assert run.output == "At nine."


@pytest.mark.parametrize("answered", [True, False])
def test_a_person_is_asked_and_silence_is_no_consent(answered: bool) -> None:
    with FakeClock() as clock:
        run = begin(escalation.escalation(ScriptedModel("Ask a person.")), "I want 5,000 back.")
        request = HumanRequest.objects.get(run=run)
        assert run.status == Status.SUSPENDED
        assert request.text.startswith("I want 5,000 back.")

        if answered:
            world.answer(request.id, "answer", text="Pay half of it.")
        else:
            clock.advance(24 * 3600 + 1)
        run_until_idle()

    run.refresh_from_db()
    assert run.output == ("Pay half of it." if answered else "We have not decided on it yet. You will hear from us.")


def calling(name: str, **arguments: Any) -> ScriptedModel:
    call = ToolUseBlock(tool_name=name, arguments=arguments, call_id="c1")
    return ScriptedModel([call, lambda messages, options: messages[-1].content[0].text])


def invoicing(amount: int) -> ScriptedModel:
    return calling("send_invoice", customer="ACME", amount=amount)


@pytest.fixture
def accountant(django_user_model: Any) -> Any:
    approval.sent.clear()
    user = django_user_model.objects.create_user("ann")
    user.groups.create(name="accounts")
    return user


def test_a_small_sum_needs_nobody(accountant: Any) -> None:
    run = begin(approval.approval(invoicing(50)), "Send an invoice of 50 to ACME")

    assert (run.output, approval.sent) == ("Invoice of 50 sent to ACME.", ["50 to ACME"])


@pytest.mark.parametrize(
    ("decision", "words", "sent"),
    [
        ({"action": "approve"}, "Invoice of 500 sent to ACME.", ["500 to ACME"]),
        ({"action": "edit", "arguments": {"customer": "ACME", "amount": 50}}, "50 sent to ACME.", ["50 to ACME"]),
        ({"action": "deny", "reason": "They have not ordered."}, "denied: They have not ordered.", []),
    ],
)
def test_a_large_sum_waits_for_a_person(accountant: Any, decision: dict[str, Any], words: str, sent: list[str]) -> None:
    run = begin(approval.approval(invoicing(500)), "Send an invoice of 500 to ACME")
    assert (run.status, approval.sent) == (Status.SUSPENDED, [])

    world.answer(HumanRequest.objects.get(run=run), **decision, by=accountant)
    run_until_idle()

    run.refresh_from_db()
    assert words in (run.output or "")
    assert approval.sent == sent


def test_a_supervisor_of_weeks_starts_a_child_each_day() -> None:
    asked: list[str] = []

    def say(text: str) -> Any:
        asked.append(text)
        return RuntimeError("down") if text == "Report on day 3." and asked.count(text) == 1 else "All well."

    with FakeClock() as clock:
        run = begin(supervisor.supervisor(saying(say), days=16), "Begin.")
        for _ in range(16):
            assert run.status == Status.SUSPENDED
            clock.advance(24 * 3600)
            run_until_idle()
            run.refresh_from_db()

    assert run.output == "\n".join(f"day {day}: All well." for day in range(16))
    assert Run.objects.filter(parent=run).count() == 17  # the third day's has failed, and was started again
    assert run.generation == 2
    of_now = JournalEntry.objects.filter(run=run, generation=run.generation, kind="child.spawned").count()
    assert of_now == 2  # of the third week


def test_a_supervisor_stops_when_it_is_told_to() -> None:
    with FakeClock() as clock:
        run = begin(supervisor.supervisor(ScriptedModel("All well.")), "Begin.")
        clock.advance(24 * 3600)
        run_until_idle()

        signal(run.id, "stop", True)
        run_until_idle()

    run.refresh_from_db()
    assert run.output == "day 0: All well.\nday 1: All well.\nstopped"


def test_a_report_that_comes_too_late_is_no_message_to_the_supervisor() -> None:
    class Slow:
        id = supervisor.supervisor(ScriptedModel("x"))[1].id

        async def run(self, ctx: Any, inbox: Any) -> None:
            await ctx.sleep_until_signal("go")
            await ctx.reply(inbox[0], "At last.")

    with FakeClock() as clock:
        run = begin([supervisor.Supervisor(days=8), Slow()], "Begin.")
        for _ in range(26):
            at_work = list(Run.objects.filter(parent=run, status=Status.SUSPENDED))
            clock.advance(12 * 3600 + 1)
            run_until_idle()
            for child in at_work:
                signal(child.id, "go")
            run_until_idle()

    run.refresh_from_db()
    assert run.output == "\n".join(f"day {day}: no report (timed_out)" for day in range(8)), run.error
    assert run.generation == 1
    assert Run.objects.filter(parent=run, output="At last.").count() == 8


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Publications whose fan-out was hinted."""
    found: list[Any] = []
    world.patch(monkeypatch, "fan_out_hint", found.append)
    return found


def until_all_is_delivered(published: list[Any]) -> None:
    run_until_idle()
    while published:
        world.fan_out_run(published.pop(0))
        run_until_idle()


def curated(run: Run) -> list[tuple[str, bool]]:
    found = [entry.result for entry in journal_of(run) if entry.name == "feed.curated"]
    return [(item["title"], item["keep"]) for item in found]


def test_a_feed_brings_two_users_what_is_for_them(published: list[Any], django_user_model: Any) -> None:
    newsroom, reader = feed.feed(saying(lambda text: "In short."))
    register(newsroom)
    readers = {}
    for name, wishes in (("ann", "python"), ("bob", "not python, not sailing")):
        user = django_user_model.objects.create_superuser(name)
        register(reader)
        readers[name] = submit(reader, "Begin.", user=user, metadata={"preferences": wishes})
    run_until_idle()

    news = submit(newsroom, "The doors are open.")
    for item in feed.ITEMS:
        signal(news.id, "new_source_item", item)
    until_all_is_delivered(published)

    titles = ["", *(item["title"] for item in feed.ITEMS)]
    assert curated(readers["ann"]) == list(zip(titles, [False, True, False, False], strict=True))
    assert curated(readers["bob"]) == list(zip(titles, [True, False, True, False], strict=True))
    assert Run.objects.count() == 3


def test_metrics_add_up_what_the_bus_tells_and_remember_it(published: list[Any]) -> None:
    counting, worker = metrics.metrics(ScriptedModel("ok", usage=Usage(input_tokens=5, output_tokens=2), cost=0.5))
    register(worker)
    done = [submit(worker, str(number)) for number in range(25)]
    run = begin([counting], "Begin.")

    for ended in done:
        event = run_completed(ended.id, ended.session_id, "ok", agent=ended.agent)
        for _ in range(2):  # an event may come twice
            signal(run.id, "new_source_item", event.model_dump(mode="json"), key=f"event:{event.id}")
    run_until_idle()

    run.refresh_from_db()
    assert (run.status, run.generation) == (Status.SUSPENDED, 1)
    told = Publication.objects.order_by("-id")[0].body["payload"]["data"]
    assert told == {"react/worker": {"run.completed": 25, "tokens": 175, "cost": 12.5}}


def office(tool: str, **arguments: Any) -> list[Agent]:
    return cases.cases(calling(tool, **arguments), ScriptedModel("Bonjour"))


def test_the_loop_by_hand_calls_tools_and_remembers() -> None:
    model = calling("calculator", expression="12 * 7")
    team = loop.loop(model)

    run = begin(team, "What is 12 * 7?")
    again = begin(team, "And again?", session=run.session)

    assert (run.output, again.output) == ("84", "84")
    assert [message.text for message in model.calls[2].messages][::4] == ["What is 12 * 7?", "And again?"]


BUSY = TransientError("busy", retry_after=900)
OUTCOMES = [("Two.", "says: Two."), (RuntimeError("none"), "failed."), (BUSY, "in time."), (BUSY, "was cancelled.")]


@pytest.mark.parametrize(("answer", "words"), OUTCOMES)
def test_a_manager_by_hand_goes_on_whatever_the_outcome_is(answer: Any, words: str) -> None:
    with FakeClock() as clock:
        run = begin(delegate.delegate(ScriptedModel([answer])), "Which tides?")
        if words == "was cancelled.":
            world.cancel(Run.objects.get(parent=run).id, "not needed")
        clock.advance(121)
        run_until_idle()

    run.refresh_from_db()
    assert (run.output or "").endswith(words)


def test_a_feed_by_hand_brings_what_fits(published: list[Any], admin_user: Any) -> None:
    newsroom, reader = seeds_feed.feed(saying(lambda text: "In short."))
    reading = begin([reader], "Begin.", user=admin_user, metadata={"preferences": "python, not football"})
    news = begin([newsroom], "The doors are open.")
    for item in feed.ITEMS:
        signal(news.id, "new_source_item", item)
    until_all_is_delivered(published)

    assert [keep for _, keep in curated(reading)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("team", "output", "agent", "children"),
    [
        (proxy.proxy(), "sent", "seeds/clerk", 1),
        ([proxy.Clerk("seeds/proxy"), proxy.Proxy()], "sent", "seeds/clerk", 1),
        (office("ask_translator", text="good morning"), "Bonjour (depth 1)", "react/office", 1),
        (office("ask_customer", question="Shall I?"), "The customer says: yes", "react/office", 0),
        (office("give_to_translator", text="good morning"), "Bonjour (depth 0)", "agent/translator", 0),
    ],
)
def test_an_agent_waits_for_a_person_or_a_child_or_hands_over(
    team: Any, output: str, agent: str, children: int
) -> None:
    run = begin(team, "Translate this: good morning")
    for request in HumanRequest.objects.all():
        world.answer(request.id, "answer", text="yes")
    for row in JournalEntry.objects.filter(name="hitl.question", run__agent="seeds/proxy"):
        signal(row.run_id, f"human_reply:{row.result['correlation_id']}", "yes")
    run_until_idle()

    run.refresh_from_db()
    assert (run.output, run.agent, Run.objects.filter(parent=run).count()) == (output, agent, children)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("feed", "keep  Python 4 is not coming"),
        ("metrics", "'run.completed': 2"),
        ("router", "[rehearsal] You said:"),
        ("research", "what speaks against it"),
        ("writer_critic", "[rehearsal] You said:"),
        ("supervisor", "\nday 7: [rehearsal]|\nday 7: no report (timed_out)"),  # a report has a quarter of a second
        ("approval", "did not happen: denied: it needs a person's approval"),
        ("seeds.loop", "84"),
        ("seeds.feed", "keep  Sailing around the world"),
        ("seeds.cases", "[rehearsal]"),
    ],
)
def test_they_run_from_the_command_line(name: str, words: str, tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key not in {"REDIS_URL", "RAVI_MODEL"}} | {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "DATABASE_URL": f"sqlite:///{template.sqlite(tmp_path / 'db.sqlite3')}",
    }

    done = forks.run(["-m", f"examples.{name}"], env=env, capture_output=True, text=True, timeout=seconds(90))

    assert done.returncode == 0, done.stderr
    assert any(either in done.stdout for either in words.split("|"))
