"""The demo's feed page: one's own items, and each of them."""

from __future__ import annotations

from tests.support.guards.mutant import Mutant

PAGE = ("tests/unit/project/test_feed_page.py",)
ITEMS = ("tests/unit/project/test_feed_page.py",)

FEED_PAGE = [
    Mutant(
        "feed page: the items of one's own runs",
        "project/feed_page.py",
        "Run.objects.filter(owner=user, agent=feeds.READER).values",
        "Run.objects.filter(agent=feeds.READER).values",
        PAGE,
    ),
    Mutant(
        "feed page: of one's own for a superuser too",
        "project/feed_page.py",
        "Run.objects.filter(owner=user, agent=feeds.READER).values",
        "Run.objects.for_user(user).filter(agent=feeds.READER).values",
        PAGE,
    ),
    Mutant(
        "feed page: one's own session",
        "project/feeds.py",
        "Run.objects.filter(owner=user, agent=READER, parent=None)",
        "Run.objects.filter(agent=READER, parent=None)",
        PAGE,
    ),
    Mutant(
        "feed page: one's own follows",
        "project/feeds.py",
        "Follow.objects.filter(owner=user, ",
        "Follow.objects.filter(",
        PAGE,
    ),
    Mutant(
        "feed page: nothing for strangers", "project/feed_page.py", "not request.user.is_authenticated", "False", PAGE
    ),
    Mutant(
        "feed page: what was committed late",
        "project/feed_page.py",
        ", UTC) - LATE)",
        ", UTC))",
        ITEMS,
    ),
    Mutant(
        "feed page: the pages after an item go on from it",
        "project/feed_page.py",
        "rows.filter(id__gt=after)",
        "rows.filter(id__gt=since)",
        ITEMS,
    ),
    Mutant(
        "feed page: what is looked at again is a page",
        "project/feed_page.py",
        "id__lte=after)[:PAGE])",
        "id__lte=after))",
        ITEMS,
    ),
    Mutant(
        "feed page: what is looked at again is the newest",
        "project/feed_page.py",
        "id__lte=after)[:PAGE])[::-1]",
        'id__lte=after).order_by("id")[:PAGE])',
        ITEMS,
    ),
    Mutant(
        "feed page: an address is one of a web page",
        "project/feed_page.py",
        'parts.scheme in ("http", "https") and parts.netloc',
        "parts.netloc",
        ITEMS,
    ),
    Mutant(
        "feed page: an address has a host",
        "project/feed_page.py",
        'parts.scheme in ("http", "https") and parts.netloc',
        'parts.scheme in ("http", "https")',
        ITEMS,
    ),
    Mutant(
        "feed page: an address that cannot be read is none",
        "project/feed_page.py",
        'except ValueError:\n        return ""\n',
        'except ZeroDivisionError:\n        return ""\n',
        ITEMS,
    ),
    Mutant(
        "feed page: what the users have chosen stays",
        "project/feeds.py",
        "if follows_of(user).exists() or readers_of",
        "if False and readers_of",
        PAGE,
    ),
    Mutant(
        "feed page: visits at the same time begin one reader",
        "project/feeds.py",
        'idempotency_key=f"feed after {last and last.id}"',
        "",
        PAGE,
    ),
    Mutant(
        "feed page: another reader after the one that has ended",
        "project/feeds.py",
        "feed after {last and last.id}",
        "feed",
        PAGE,
    ),
    Mutant(
        "feed page: visits at the same time with other preferences",
        "project/feeds.py",
        "except IdempotencyMismatchError:",
        "except ZeroDivisionError:",
        PAGE,
    ),
    Mutant(
        "feed page: a reader that lives, behind one that has ended",
        "project/feeds.py",
        "if (live := rows.filter(status__in=ACTIVE).first()) is not None",
        "if (live := rows.first()) is not None and live.status in ACTIVE",
        PAGE,
    ),
    Mutant(
        "feed page: the session of the reader that lives",
        "project/feeds.py",
        "rows.filter(status__in=ACTIVE).first() or rows.first()",
        "rows.first()",
        PAGE,
    ),
    Mutant(
        "feed page: a follow of the contract's form comes to the reader",
        "project/feeds.py",
        ".update(home=session_of(user))",
        ".exists()",
        PAGE,
    ),
    Mutant(
        "feed page: a follow of the contract's form has the preferences",
        "project/feeds.py",
        "_keep(told_nothing, kept.text)",
        "pass",
        PAGE,
    ),
    Mutant(
        "feed page: other metadata of a follow stays",
        "project/feeds.py",
        '{**row.metadata, "preferences": text}',
        '{"preferences": text}',
        PAGE,
    ),
    Mutant(
        "feed page: preferences are kept though nothing is followed",
        "project/feeds.py",
        'FeedPreferences.objects.update_or_create(user=user, defaults={"text": text})',
        "pass",
        PAGE,
    ),
]
