"""A big result: the model sees its beginning, and reads on by the id that the marker names."""

import re
import zlib

import pytest
from django.contrib.auth.models import User
from hypothesis import given, strategies as st

from ravi_django import tool
from ravi_django.kernel import DataBlock, ImageBlock, TextBlock
from ravi_django.models import Blob, JournalEntry, Session, Status, uuid7
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.cases import case
from tests.support.runs import code, drive, every_death, make_run
from tests.support.tool_calls import calling, output_of
from tests.support.world import ReadResultTool, fork

pytestmark = pytest.mark.django_db(transaction=True)

LINES = "\n".join(f"line {number} é" for number in range(1, 2001))
SIZE = len(LINES.encode())


@pytest.fixture
def report(ran):
    @tool(max_result_bytes=1000)
    def report() -> str:
        """Report."""
        ran.append("report")
        return LINES

    return report


async def reading(ctx, inbox):
    """Everything, by the markers alone."""
    text = (await ctx.tool("report")).text
    found = ""
    while match := re.search(r'\n\[cut here: .*read_result\(id="(.*)", offset=(\d+)\)\]\Z', text):
        found += text[: match.start()]
        place = int(match[2])
        while True:
            text = (await ctx.tool("read_result", id=match[1], offset=place, limit=9001)).text
            page, _, told = text.rpartition("\n[bytes ")
            found += page
            place = int(re.search(r"to (\d+)", told)[1])
            if "this is the end" in told:
                return "whole" if found == LINES else found
    return text


def test_the_whole_is_read_by_its_marker(report, clock, ran):
    code(reading, tools=[report, ReadResultTool()])

    run = drive(make_run())

    assert run.output == "whole"
    row = JournalEntry.objects.filter(run=run, name="report").get()
    assert row.result["whole"] == {"blob": row.digests["whole"], "size": SIZE}
    assert len(row.result["content"][0]["text"].encode()) < 1200


def test_a_takeover_neither_makes_nor_reads_it_anew(report, clock, ran, settings, monkeypatch):
    blob, pages = world.results_blob, []
    world.patch(monkeypatch, "results_blob", lambda *args: pages.append(args) or blob(*args))
    settings.RAVI = {**settings.RAVI, "REPLAY": "strict"}  # that a result is big is no drift

    def story(drive):
        ran.clear()
        pages.clear()
        code(reading, tools=[report, ReadResultTool()])
        return drive(make_run())

    for run, death in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "whole")
        lost = (death.at == 1) * death.lost("tool.call")
        assert len(ran) == 1 + lost
        assert len(pages) == 3 + death.lost("tool.call") - lost


def test_an_agent_that_cannot_read_on_is_not_told_to(report):
    answer = output_of(report)

    assert answer.endswith(f"\n[cut here: {SIZE - 1000} of {SIZE} bytes left out]")
    assert Blob.objects.filter(id=JournalEntry.objects.get(name="report").digests["whole"]).exists()


def test_no_tool_has_more_than_the_site_allows_and_what_no_blob_may_hold_is_told_to_be_lost(settings, monkeypatch):
    @tool(max_result_bytes=10_000)
    def report(count: int) -> str:
        """Report."""
        return "é" * count

    assert output_of(report, count=5000) == "ok: " + "é" * 5000, "at its own limit it is whole"
    assert "whole" not in JournalEntry.objects.get(name="report").digests
    settings.RAVI = {**settings.RAVI, "MAX_RESULT_BYTES": 100}
    world.patch(monkeypatch, "BLOB_BYTES", 301)
    assert output_of(report, count=51) == f"ok: {'é' * 50}\n[cut here: 2 of 102 bytes left out]"

    answer = output_of(report, count=1000)

    assert answer.endswith("\n[cut here: the whole has more than 300 bytes, of which the first 300 were kept]")
    wholes = [zlib.decompress(blob.body).decode() for blob in Blob.objects.filter(encoding="text+zlib")]
    assert "é" * 150 in wholes


def test_half_a_picture_is_none():
    big, little = ImageBlock(data="A" * 5000, mime_type="image/png"), ImageBlock(data="QUJD", mime_type="image/png")

    @tool(max_result_bytes=1000)
    def look():
        """Look."""
        return [TextBlock(text="two:"), little, big, DataBlock(data={"x": "y" * 2000})]

    output_of(look)

    row = JournalEntry.objects.get(name="look")
    shown = row.result["content"]
    assert shown[:2] == [{"type": "text", "text": "two:"}, {"type": "image", "data": "QUJD", "mime_type": "image/png"}]
    assert shown[2]["text"] == "[image, 5000 bytes: too big to be shown]"
    assert shown[3]["text"].startswith('{"x":"yyy')
    assert "\n[cut here: the whole has " in shown[3]["text"]
    assert len(shown) == 4
    whole = zlib.decompress(Blob.objects.get(id=row.digests["whole"]).body)
    assert b"A" * 5000 in whole
    assert b"y" * 2000 in whole


def a_result(report, **fields):
    """The id of a cut result, and its run."""
    code(calling("report"), tools=[report])
    run = drive(make_run(**fields))
    return f"{run.id}:0:{JournalEntry.objects.get(run=run, name='report').path}", run


def read(entry, **fields):
    code(calling("read_result", id=entry, limit=6), tools=[ReadResultTool()])
    return drive(make_run(**fields)).output


READ = f"ok: line 1\n[bytes 0 to 6 of {SIZE}; offset 6 has the next of {SIZE - 6} bytes]"


def test_a_later_run_of_the_session_and_the_owners_other_runs_may_read_it(report):
    entry, run = a_result(report)
    assert read(entry, session=run.session) == READ
    code(calling("read_result", id=entry, offset=SIZE), tools=[ReadResultTool()])
    answer = drive(make_run(session=run.session)).output
    assert answer == f"error: the result has {SIZE} bytes; there is nothing at offset {SIZE}"

    ann = User.objects.create_user("ann")
    entry, _ = a_result(report, owner=ann, tenant="a")
    assert read(entry, owner=ann, tenant="a") == READ


@pytest.mark.parametrize("who", ["bob", "nobody", "ann elsewhere", "nobody's"])
def test_anybody_elses_reads_as_unknown(report, who):
    ann, bob = User.objects.create_user("ann"), User.objects.create_user("bob")
    entry, _ = a_result(report, owner=None if who == "nobody's" else ann, tenant="a")
    fields = {
        "bob": {"owner": bob, "tenant": "a"},
        "nobody": {"tenant": "a"},
        "ann elsewhere": {"owner": ann, "tenant": "b"},
        "nobody's": {"tenant": "a"},
    }

    answer = read(entry, **fields[who])

    assert answer == f"error: there is no result '{entry}' here; give the id that the mark at the cut names"
    assert answer.replace(entry, "?") == read(nothing := f"{uuid7()}:0:1", **fields[who]).replace(nothing, "?")


def test_what_is_no_id_of_a_cut_result_is_unknown():
    code(calling("read_result", id="x"), tools=[ReadResultTool()])
    run = drive(make_run())

    for entry in ("", "x", "../etc", "1" * 64, f"{run.id}:x:1", f"{run.id}:0:{journal_of(run)[-2].path}"):
        with case(entry):
            assert read(entry, session=run.session).startswith("error: there is no result ")


def test_a_text_in_it_is_found(report):
    entry, run = a_result(report)
    code(calling("read_result", id=entry, find="LINE 1234 é"), tools=[ReadResultTool()])

    answer = drive(make_run(session=run.session)).output

    place = LINES.encode().index("line 1234 é".encode())
    assert answer.startswith(f"ok: at {place}: …")
    assert "line 1234 é\nline 1235" in answer


def test_a_fork_reads_on_in_what_its_past_was_shown(report):
    async def story(ctx, inbox):
        text = (await ctx.tool("report")).text
        entry = re.search(r'id="(.*?)"', text)[1]
        return (await ctx.tool("read_result", id=entry, limit=6)).text

    code(story, tools=[report, ReadResultTool()])
    run = drive(make_run())
    seq = JournalEntry.objects.get(run=run, name="report").seq

    again = drive(fork(fork(run.id, seq).id, seq))

    assert again.output == run.output == READ.removeprefix("ok: ")
    assert again.session_id != run.session_id


@pytest.mark.parametrize("inline", [100, 1_000_000])
def test_the_prune_leaves_it_while_its_row_lives(report, clock, monkeypatch, inline):
    world.patch(monkeypatch, "INLINE_BYTES", inline)
    a_result(report)
    whole = JournalEntry.objects.get(name="report").digests["whole"]
    clock.advance(10 * world.DAY_S)

    world.prune(dict.fromkeys(world.PRUNE_KINDS, 30 * world.DAY_S))

    assert Blob.objects.filter(id=whole).exists()
    clock.advance(30 * world.DAY_S)
    world.prune(dict.fromkeys(world.PRUNE_KINDS, 30 * world.DAY_S))
    assert not Blob.objects.filter(id=whole).exists()


@given(text=st.text(min_size=1, max_size=300), limit=st.integers(1, 20))
def test_pages_make_the_whole(text, limit):
    blob, place, pages = world.make_text_blob(text.encode()), 0, []

    while place < blob.size:
        page = world.results_aligned(world.results_part(blob, place, limit + 4), limit)
        pages.append(page.decode())  # no page has half of a character
        assert 0 < len(page) <= max(limit, 4)
        place += len(page)

    assert "".join(pages) == text


@given(
    text=st.text(alphabet="abé", max_size=2000),
    wanted=st.text(alphabet="abé", min_size=1, max_size=5),
    offset=st.integers(0, 50),
    step=st.integers(1, 700),
)
def test_what_is_found_is_what_there_is(text, wanted, offset, step):
    was = world.RESULTS_STEP
    world.replace("RESULTS_STEP", step)
    try:
        answer = world.results_matches(world.make_text_blob(text.encode()), offset, wanted)
    finally:
        world.replace("RESULTS_STEP", was)

    body = text.encode()
    places = [match.start() for match in re.finditer(re.escape(wanted.encode()), body[offset:])]
    expected = [place + offset for place in places][: world.MAX_FOUND]
    assert [int(place) for place in re.findall(r"^at (\d+): ", answer, re.MULTILINE)] == expected


def test_the_same_bytes_as_json_and_as_text_are_one_blob(report):
    """A body is known by its bytes, however it is packed."""
    world.save_blobs([world.make_text_blob(b'"abc"')])
    world.save_blobs([world.make_blob(b'"abc"')])

    assert world.blob_value(Blob.objects.get()) == "abc"
    assert Session.objects.count() == 0
