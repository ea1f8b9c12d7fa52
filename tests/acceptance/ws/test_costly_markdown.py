"""Whatever a model writes, the reader's tab shows it and stays usable. Needs a Chromium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser import elsewhere
from tests.support.cases import case
from tests.support.patience import seconds

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # of the static files' middleware
    pytest.mark.full,
    pytest.mark.timeout(300),
]
LONGEST_MS = seconds(3) * 1000  # each of these took 9 s or more, or ended the tab
SIZE = 99_000  # longer texts are plain; "Format" parses them all the same


def table(columns: int, rows: int) -> str:
    return f"|{'a|' * columns}\n|{'-|' * columns}\n" + "x\n" * rows


def many(part: str, size: int = SIZE) -> str:
    return (part * (size // len(part) + 1))[:size]


TEXTS = {
    "table, 4 kB": table(500, 500),
    "table, 8 kB": table(1000, 2000),
    "table, 63 kB": table(8000, 15_000),
    "table in a quote": "> " + table(500, 500).replace("\n", "\n> "),
    "tables": many("|a|b|\n|-|-|\n|x|y|\n\n"),
    "quotes": "The answer is 42.\n\n" + ">" * 3000,
    "quotes and lists": "> - " * 1500 + "a",
    "lists in lists": "\n".join(" " * 2 * level + "- a" for level in range(300)),
    "loose list": many("- a\n\n"),
    "code by ticks": many("`a "),
    "fences": many("```\na\n"),
    "a fence that is none": "<div>\n```\n\n" + "_a" * 45_000,
    "long code": "```\n" + many("_a\n", 50_000),
    "references": "[a]: /b\n\n" + many("[a] "),
    "lines": many("a\n"),
    **{
        f"many {part}": many(part)
        for part in ("_a", "*a", "***a", "~~a~ ", "[", "`", "<", "<!-- a ", "&amp;", "[^1]: a\n")
    },
    "256 KiB, plain": many("*a", 262_144),
    "256 KiB of lists": many("- a\n\n", 262_144),
}
PAINTED = """async (text) => {
    const { Prose, isPainting } = await import('/static/ravi/ui/markdown.js');
    const prose = new Prose();
    const count = () => prose.root.querySelectorAll('*').length;
    let [longest, most, last] = [0, 0, 0];
    const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(() => {
        [most, last] = [Math.max(most, count() - last), count()];
        done();
    })));
    document.querySelector('ravi-chat').shadowRoot.getElementById('transcript').replaceChildren(prose.root);
    const tasks = new PerformanceObserver((list) => {
        longest = Math.max(longest, ...list.getEntries().map((task) => task.duration));
    });
    tasks.observe({ type: 'longtask' });
    const step = Math.ceil(text.length / 8);
    for (let at = 0; at < text.length; at += step, await frame()) prose.append(text.slice(at, at + step));
    prose.set(text);
    do {
        await frame();
        prose.root.querySelector(':scope > button')?.click(); // Format
    } while (isPainting());
    await frame();
    tasks.disconnect();
    return [longest, most, prose.root.textContent.slice(0, 20)];
}"""


def test_no_text_of_a_model_freezes_the_tab(demo: Any, server: Any, new_page: Callable[..., Any]) -> None:
    page = new_page(server.url, demo)
    page.goto("/ravi/ui/chat/")
    page.wait_for_selector("ravi-chat:defined")
    for name, text in TEXTS.items():  # streamed, and then as a whole
        with case(name):
            longest, most, shown = page.evaluate(PAINTED, text)
            assert longest < LONGEST_MS
            assert most < 25_000, "elements of one frame of the screen"  # two turns may share a late frame
            assert shown or set(text) == {"`"}
    assert (page.errors, page.console) == ([], [])


def test_a_conversation_with_such_an_answer_opens_and_goes_on(
    demo: Any, server: Any, worker: Any, paced: Any, submitted: Any, new_page: Callable[..., Any]
) -> None:
    answer = "The answer is 42.\n\n" + ">" * 3000
    paced.words[:] = [answer, f"\n\n{table(500, 500)}\n\n**The end.**\n\n", "_a" * 45_000]
    run = elsewhere(submitted, "react/paced")
    page = new_page(server.url, demo)
    page.goto(f"/ravi/ui/chat/{run.session_id}/")

    paced.let(1)
    page.wait_for_selector(".answer.live .prose:has-text('The answer is 42.')")
    paced.let_all()
    for _ in range(2):
        page.wait_for_selector(".answer .prose strong:text-is('The end.')")
        page.wait_for_selector(".answer .foot")
        plain = page.locator(".answer .prose .plain").all_inner_texts()
        assert [text[:2] for text in plain][:3] == [">>", "|a", "_a"]
        page.fill("ravi-chat #text", "still usable")
        page.reload()
    page.goto(f"/ravi/ui/runs/{run.id}/")
    page.wait_for_selector("text=react/paced")
    assert (page.errors, page.console) == ([], [])
