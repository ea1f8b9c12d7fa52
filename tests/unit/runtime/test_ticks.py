"""When ticks are: cron on a wall clock that jumps, intervals that do not drift, jitter that is the same each time."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from ravi_django.kernel import InvalidInputError
from tests.support.world import Timetable, check_cron, zone_of

NEW_YORK, BERLIN, CAIRO = "America/New_York", "Europe/Berlin", "Africa/Cairo"
LORD_HOWE, APIA = "Australia/Lord_Howe", "Pacific/Apia"


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


def cron(text: str, zone: str = "UTC", **more) -> Timetable:
    return Timetable(**{"cron": text, "every_s": None, "zone": ZoneInfo(zone), "starts_at": None, "jitter_s": 0,
                        "seed": "s", **more})  # fmt: skip


def every(seconds: int, start: datetime | None = None, **more) -> Timetable:
    return cron("", every_s=seconds, starts_at=start or utc(2030, 1, 1), **more)


def seen(text: str, zone: str, after: str, count: int = 3) -> list[str]:
    """What a clock on the wall shows at the ticks behind a wall time, with its offset."""
    place = ZoneInfo(zone)
    found = cron(text, zone).next(datetime.fromisoformat(after).replace(tzinfo=place), count)
    return [f"{at.astimezone(place):%d %H:%M%z}" for at in found]


JUMPS = [
    # A fixed time in the gap comes at the first minute behind it, that day and no other.
    ("30 2 * * *", NEW_YORK, "2026-03-07T12:00", "08 03:00-0400", "09 02:30-0400"),
    ("0,30 2 * * *", NEW_YORK, "2026-03-08T00:00", "08 03:00-0400", "09 02:00-0400"),
    ("0 2,3 * * *", NEW_YORK, "2026-03-08T00:00", "08 03:00-0400", "09 02:00-0400"),
    ("30 2 * * *", BERLIN, "2026-03-28T12:00", "29 03:00+0200", "30 02:30+0200"),
    ("0 0 * * *", CAIRO, "2026-04-23T12:00", "24 01:00+0300", "25 00:00+0300"),
    ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00", "04 02:30+1100", "05 02:15+1100"),
    ("0 12 * * *", APIA, "2011-12-29T11:00", "29 12:00-1000", "31 00:00+1400", "31 12:00+1400"),
    # A fixed time that comes twice is run at the first.
    ("30 1 * * *", NEW_YORK, "2026-10-31T12:00", "01 01:30-0400", "02 01:30-0500"),
    ("30 2 * * *", BERLIN, "2026-10-24T12:00", "25 02:30+0200", "26 02:30+0100"),
    ("30 23 * * *", CAIRO, "2026-10-29T12:00", "29 23:30+0300", "30 23:30+0200"),
    ("45 1 * * *", LORD_HOWE, "2026-04-04T12:00", "05 01:45+1100", "06 01:45+1030"),
    # What follows the clock skips the gap, and comes again in the hour that repeats.
    ("*/10 * * * *", NEW_YORK, "2026-03-08T01:45", "08 01:50-0500", "08 03:00-0400", "08 03:10-0400"),
    ("*/10 * * * *", NEW_YORK, "2026-11-01T01:45", "01 01:50-0400", "01 01:00-0500", "01 01:10-0500"),
    ("0 * * * *", NEW_YORK, "2026-03-08T00:30", "08 01:00-0500", "08 03:00-0400", "08 04:00-0400"),
    ("0 * * * *", NEW_YORK, "2026-11-01T00:30", "01 01:00-0400", "01 01:00-0500", "01 02:00-0500"),
    ("30 */2 * * *", NEW_YORK, "2026-03-08T00:45", "08 04:30-0400", "08 06:30-0400"),
    ("0 * * * *", LORD_HOWE, "2026-04-05T00:30", "05 01:00+1100", "05 02:00+1030", "05 03:00+1030"),
    ("*/30 * * * *", LORD_HOWE, "2026-10-04T01:15", "04 01:30+1030", "04 02:30+1100", "04 03:00+1100"),
    ("0 */6 * * *", APIA, "2011-12-29T17:00", "29 18:00-1000", "31 00:00+1400", "31 06:00+1400"),
    # The hour that repeats comes a year before the next that fits.
    ("*/30 1 1 11 *", NEW_YORK, "2026-11-01T01:15", "01 01:30-0400", "01 01:00-0500", "01 01:30-0500"),
]


def test_on_the_days_on_which_clocks_jump():
    for text, zone, after, *expected in JUMPS:
        assert seen(text, zone, after, len(expected)) == expected, (text, zone)
    second = datetime(2026, 11, 1, 1, 15, tzinfo=ZoneInfo(NEW_YORK), fold=1)
    assert cron("30 1 * * *", NEW_YORK).after(second) == utc(2026, 11, 2, 6, 30), "a fixed time comes no second time"


@pytest.mark.parametrize("zone", [NEW_YORK, BERLIN, CAIRO, LORD_HOWE, "Africa/Casablanca", "Asia/Kathmandu"])
def test_a_daily_job_runs_once_a_day_for_years(zone):
    found = cron("30 2 * * *", zone).next(utc(2024, 1, 1), 800)
    days = [at.astimezone(ZoneInfo(zone)).date() for at in found]

    assert [b - a for a, b in pairwise(days)] == [timedelta(days=1)] * 799


@given(
    text=st.sampled_from(
        ["*/10 * * * *", "0 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 */2 * * *", "0 0 L * *", "5 1 * * SUN#2"]
    ),
    zone=st.sampled_from([NEW_YORK, BERLIN, CAIRO, LORD_HOWE, APIA, "UTC"]),
    start=st.datetimes(datetime(2011, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
    later_s=st.integers(0, 4 * 86400),
)
def test_the_ticks_do_not_depend_on_when_one_asks(text, zone, start, later_s):
    times = cron(text, zone)
    later = start + timedelta(seconds=later_s)
    found = times.next(start, 100)

    assert found == sorted(set(found)) and found[0] > start
    if later < found[-1]:
        assert times.after(later) == next(at for at in found if at > later)


def every_minute(text: str, zone: str, start: datetime, minutes: int) -> list[datetime]:
    """Which minutes a job that follows the clock runs in: by looking at the clock each minute."""
    from cronsim import CronSim

    found = []
    for number in range(minutes):
        at = start + timedelta(minutes=number)
        wall = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if next(CronSim(text, wall - timedelta(seconds=1))) == wall:
            found.append(at)
    return found


@pytest.mark.parametrize(
    ("zone", "text"),
    [(NEW_YORK, "*/7 * * * *"), (CAIRO, "0 * * * *"), (LORD_HOWE, "*/20 1-5 * * *"), (APIA, "30 */2 * * *")],
)
def test_what_follows_the_clock_is_what_one_sees_looking_at_it(text, zone):
    for day in (utc(2026, 3, 7), utc(2026, 4, 4), utc(2026, 4, 23), utc(2026, 10, 3), utc(2026, 10, 29),
                utc(2026, 10, 31), utc(2011, 12, 29)):  # fmt: skip
        expected = every_minute(text, zone, day, 2 * 1440)

        assert cron(text, zone).next(day - timedelta(seconds=1), len(expected)) == expected


def test_intervals_are_counted_from_their_start_and_do_not_drift():
    times = every(7, utc(2030, 1, 1, 0, 0, 3))

    assert times.next(utc(2029, 12, 31), 3) == [utc(2030, 1, 1, 0, 0, second) for second in (3, 10, 17)]
    late = times.after(utc(2030, 6, 1, 12, 0, 1))
    assert late is not None and (late - utc(2030, 1, 1, 0, 0, 3)) % timedelta(seconds=7) == timedelta()
    assert times.after(utc(2030, 1, 1, 0, 0, 10)) == utc(2030, 1, 1, 0, 0, 17)
    times = cron("0 * * * *", starts_at=utc(2030, 1, 1))
    assert times.next(utc(2026, 1, 1), 2) == [utc(2030, 1, 1), utc(2030, 1, 1, 1)], "cron waits for its start too"
    for times in (every(86400 * 3000, utc(9999, 1, 1)), cron("0 0 1 1 *", starts_at=utc(9999, 6, 1))):
        assert len(times.next(utc(2026, 1, 1), 5)) < 2, "behind the last year there is nothing more"


@given(jitter=st.integers(0, 10_000), seconds=st.integers(1, 5_000), seed=st.text(max_size=5))
def test_jitter_stays_in_its_bounds_and_keeps_the_order(jitter, seconds, seed):
    times = every(seconds, jitter_s=jitter, seed=seed)
    ticks = times.next(utc(2030, 3, 1), 20)
    put_off = [times.due(at) - at for at in ticks]

    assert all(timedelta() <= late <= timedelta(seconds=jitter) for late in put_off)
    assert all(late < timedelta(seconds=seconds) for late in put_off)
    assert [times.due(at) for at in ticks] == sorted(times.due(at) for at in ticks)
    tick = utc(2030, 1, 1, 1)
    ours, again, others = (cron("0 * * * *", jitter_s=600, seed=seed) for seed in ("a", "a", "b"))
    assert ours.due(tick) == again.due(tick) != others.due(tick), "the same each time, and another for another"
    assert len({ours.due(tick + timedelta(hours=n)) - timedelta(hours=n) for n in range(20)}) == 20


def test_the_ticks_that_have_come_are_all_or_the_latest():
    times = cron("*/10 * * * *")
    first, now = utc(2026, 1, 1), utc(2026, 1, 1, 5, 5)

    assert times.due_by(first, now, 1000) == [first + timedelta(minutes=10 * n) for n in range(31)]
    assert times.due_by(first, now, 2) == [utc(2026, 1, 1, 4, 50), utc(2026, 1, 1, 5)]
    assert times.due_by(utc(2026, 1, 1, 5), now, 5) == [utc(2026, 1, 1, 5)]
    assert times.due_by(utc(2026, 1, 1, 6), now, 5) == []
    gone = utc(2026, 1, 1, 11)  # a first tick that the rule knows no more, as after an update of the time zones
    assert cron("0 12 * * *").due_by(gone, utc(2026, 1, 1, 11, 1), 10) == [gone]


@settings(max_examples=20)
@given(span_s=st.integers(0, 20 * 86400), most=st.integers(1, 40), jitter=st.integers(0, 3000))
@pytest.mark.parametrize("times", [cron("*/15 8-18 * * MON-FRI", NEW_YORK), every(3600)])
def test_what_has_come_is_what_counting_gives(times, span_s, most, jitter):
    times = Timetable(times.cron, times.every_s, times.zone, times.starts_at, jitter, "s")
    first = times.after(utc(2030, 1, 1))
    now = times.due(first) + timedelta(seconds=span_s)
    counted = [at for at in times.next(first - timedelta(seconds=1), 700) if times.due(at) <= now]

    found = times.due_by(first, now, most)

    assert found == counted[-most:]


def test_years_of_downtime_are_not_counted_through(monkeypatch):
    asked = []
    after = Timetable.after
    monkeypatch.setattr(Timetable, "after", lambda self, at: asked.append(at) or after(self, at))

    assert len(cron("* * * * *").due_by(utc(2000, 1, 1), utc(2026, 1, 1), 100)) == 100
    assert len(every(1).due_by(utc(2030, 1, 1), utc(2090, 1, 1), 100)) == 100
    assert len(asked) < 1000


REFUSED = {
    "five fields": ["", "* * * *", "@daily"],
    "five fields, minute hour day month weekday, not 6": ["0 * * * * *"],
    "bad minute": ["60 * * * *", "*/0 * * * *", "5-1 * * * *", "\u0663 * * * *"],
    "bad hour": ["* 24 * * *"],
    "bad day-of-month": ["* * 0 * *"],
    "bad month": ["* * * 13 *"],
    "bad day-of-week": ["* * * * 8"],
    "its months do not have": ["0 0 30 2 *", "0 0 31 4,6 *"],
    "never comes": ["0 0 */29 2 SUN#2"],
    "at most 200": ["* " * 101, 5, None],
}
NO_ZONES = ["Mars/Olympus", "America", "../etc/passwd", "/etc/passwd", "a\0b", "é" * 9, None, 3]


def test_bad_expressions_and_zones_are_refused_by_name(settings):
    for words, texts in REFUSED.items():
        for text in texts:
            with pytest.raises(InvalidInputError, match=words) as refused:
                check_cron(text)
            assert refused.value.field == "cron", text
    for name in NO_ZONES:
        with pytest.raises(InvalidInputError, match="like Europe/Berlin") as refused:
            zone_of(name)
        assert refused.value.field == "timezone", name
    settings.TIME_ZONE = "Asia/Tokyo"
    assert str(zone_of("")) == "Asia/Tokyo", "no zone is the site's"


FIRSTS = [
    ("0 9 * * MON-FRI", utc(2026, 1, 1, 9)),
    ("0 9 * jan,feb mon", utc(2026, 1, 5, 9)),
    ("5/20 9-17/4 * * *", utc(2026, 1, 1, 9, 5)),
    ("0 0 L * *", utc(2026, 1, 31)),
    ("0 0 LW * *", utc(2026, 1, 30)),
    ("0 0 * * 5L", utc(2026, 1, 30)),
    ("0 0 * * MON#2", utc(2026, 1, 12)),
    ("0 0 15 * FRI", utc(2026, 1, 2)),  # both days given: either
    ("0 0 29 2 *", utc(2028, 2, 29)),
    ("0  0\t* * 7", utc(2026, 1, 4)),
]


def test_names_ranges_steps_and_last_days():
    for text, first in FIRSTS:
        assert cron(check_cron(text)).after(utc(2026, 1, 1, 0, 1)) == first, text


@given(st.text(alphabet="0123456789*/,-#LWMONJAFESU \t", max_size=40) | st.text(max_size=30))
def test_whatever_is_written_is_a_rule_or_refused(text):
    try:
        checked = check_cron(text)
    except InvalidInputError as error:
        assert error.field == "cron"
    else:
        assert cron(checked, BERLIN).after(utc(2026, 1, 1)) is not None
