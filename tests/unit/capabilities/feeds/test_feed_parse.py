"""Feeds of strangers become plain items in bounded time, or a clear error."""

import base64
import json
import sys
import time

import pytest

from ravi_django.capabilities.feeds import Item
from ravi_django.wings.feeds.fetching.adapter import SourceError
from ravi_django.wings.feeds.fetching.parse import parse
from tests.support.cases import case

URL = "https://example.org/feed.xml"
MEGABYTES = 5 * 1024 * 1024

YOUTUBE = b"""<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns:yt="http://www.youtube.com/xml/schemas/2015" xmlns:media="http://search.yahoo.com/mrss/"
 xmlns="http://www.w3.org/2005/Atom">
 <link rel="self" href="http://www.youtube.com/feeds/videos.xml?channel_id=UC123"/>
 <id>yt:channel:123</id><yt:channelId>123</yt:channelId><title>A channel</title>
 <author><name>A channel</name><uri>https://www.youtube.com/channel/UC123</uri></author>
 <published>2020-01-01T00:00:00+00:00</published>
 <entry>
  <id>yt:video:abc</id><yt:videoId>abc</yt:videoId><yt:channelId>UC123</yt:channelId>
  <title>A film &amp; more</title>
  <link rel="alternate" href="https://www.youtube.com/watch?v=abc"/>
  <author><name>A channel</name><uri>https://www.youtube.com/channel/UC123</uri></author>
  <published>2024-03-01T10:00:00+02:00</published><updated>2024-03-02T00:00:00+00:00</updated>
  <media:group>
   <media:title>A film</media:title>
   <media:content url="https://www.youtube.com/v/abc" type="application/x-shockwave-flash"/>
   <media:description>What it is about</media:description>
  </media:group>
 </entry>
</feed>"""


def rss(inside: str) -> bytes:
    return f'<rss version="2.0"><channel>{inside}</channel></rss>'.encode()


def one(inside: str) -> Item:
    (item,) = parse(rss(f"<item>{inside}</item>"), url=URL)
    return item


def refusal(body: bytes, kind: str = "") -> str:
    with pytest.raises(SourceError) as caught:
        parse(body, kind, URL)
    return str(caught.value)


def test_feeds_of_every_form_are_read() -> None:
    # rss is read oldest first
    first, second = parse(
        rss(
            "<item><guid>2</guid><title>Two</title><pubDate>Sun, 08 Sep 2002 00:00:01 GMT</pubDate></item>"
            "<item><guid>1</guid><title>One</title><link>/one</link><description>&lt;p&gt;Read &lt;b&gt;this"
            "&lt;/b&gt;&lt;/p&gt;</description><author>ann@example.org (Ann)</author><category>x</category>"
            "<pubDate>Sat, 07 Sep 2002 02:00:01 +0200</pubDate></item>"
        ),
        url=URL,
    )
    assert first == Item(
        id="1", title="One", url="https://example.org/one", text="Read this", published="2002-09-07T00:00:01+00:00",
        author="ann@example.org (Ann)", extra={"tags": ["x"]}
    )  # fmt: skip
    assert second.title == "Two"
    # a youtube channel is read
    (film,) = parse(YOUTUBE, "text/xml; charset=UTF-8")
    assert film == Item(
        id="yt:video:abc", title="A film & more", url="https://www.youtube.com/watch?v=abc", text="What it is about",
        published="2024-03-01T08:00:00+00:00", author="A channel"
    )  # fmt: skip
    # json feed is read
    feed = {
        "version": "https://jsonfeed.org/version/1.1",
        "items": [{"id": 7, "url": "/b", "content_html": "<p>x</p><script>y</script>",
            "date_published": "2024-01-02T00:00:00Z"},
            {"id": "a", "content_text": "a <b> c", "authors": [{"name": "Ann"}], "tags": ["t", 3]},
            {"id": {"no": "id"}}, "nothing"],
    }  # fmt: skip
    plain, page = parse(json.dumps(feed).encode(), url=URL)
    assert (plain.id, plain.text, plain.author, plain.extra) == ("a", "a <b> c", "Ann", {"tags": ["t"]})
    assert (page.id, page.url, page.text, page.published) == (
        "7", "https://example.org/b", "x", "2024-01-02T00:00:00+00:00",
    )  # fmt: skip


ATOM = """<feed xmlns="http://www.w3.org/2005/Atom" xmlns:xhtml="http://www.w3.org/1999/xhtml"><entry><id>urn:1</id>
<title {0}>{1}</title><summary {0}>{1}</summary><author><name>Vec&lt;T&gt; &amp;amp; Co</name></author>
<category term="a&lt;b&gt;"/></entry></feed>"""
XHTML = "<xhtml:div>a <xhtml:b>b</xhtml:b> &amp;amp; &lt;T></xhtml:div>"


@pytest.mark.parametrize(
    ("kind", "text", "plain"),
    [
        ("", "Write &lt;script&gt; &amp;amp; more", "Write <script> &amp; more"),
        ("type='text'", "Write &lt;b&gt;x&lt;/b&gt; at R&amp;D", "Write <b>x</b> at R&D"),
        ("type='html'", "Write &lt;b&gt;x&lt;/b&gt; &amp;amp; &lt;script&gt;y", "Write x &"),
        ("type='xhtml'", XHTML, "a b &amp; <T>"),
    ],
)
def test_a_text_of_atom_is_markup_only_by_its_type(kind: str, text: str, plain: str) -> None:
    (item,) = parse(ATOM.format(kind, text).encode())
    assert (item.title, item.text) == (plain, plain)
    assert (item.author, item.extra) == ("Vec<T> &amp; Co", {"tags": ["a<b>"]})


def test_texts_without_a_type() -> None:
    # in JSON Feed only content_html is markup
    feed = {
        "version": "https://jsonfeed.org/version/1.1",
        "items": [{"id": name, "title": "Vec<T> &amp; more", "authors": [{"name": "A <b>"}], "tags": ["<i>"],
            name: "Box<T> &amp; <b>this</b>"} for name in ("content_html", "summary", "content_text")],
    }  # fmt: skip
    items = parse(json.dumps(feed).encode())
    assert {(item.title, item.author, item.extra["tags"][0]) for item in items} == {
        ("Vec<T> &amp; more", "A <b>", "<i>")
    }
    assert [item.text for item in items] == [*["Box<T> &amp; <b>this</b>"] * 2, "Box & this"]
    # a title of RSS is HTML if it looks like it; a description is
    for title, plain in [
        ("Vec&lt;T&gt; in R&amp;D", "Vec<T> in R&D"), ("AT&amp;amp;T and R&amp;D", "AT&T and R&D"),
        ("&lt;i&gt;x&lt;/i&gt; y", "x y"), ("a&lt;br&gt;b", "a b"), ("<![CDATA[Tom &amp; &#8482;]]>", "Tom & ™"),
    ]:  # fmt: skip
        item = one(f"<title>{title}</title><category>{title}</category><description>&lt;p&gt;a &lt;T&gt;</description>")
        assert (item.title, item.text) == (plain, "a"), title


def test_one_odd_letter_loses_no_feed() -> None:
    head = b'\xef\xbb\xbf{"version": "https://jsonfeed.org/version/1.1", "items": [{"id": "2", "title": "two"}, '
    for odd in (b"\\ud83d", b"\\u0000", b"\x01", b"\n", b"\xff", b"\xed\xa0\xbd"):
        made = b'{"id": "1?", "title": "cut ?", "url": "https://x.test/?", "tags": ["?"], "x?": NaN, "summary": "?"}]}'
        items = parse(head + made.replace(b"?", odd))
        assert [item.title.partition(" ")[0] for item in items] == ["cut", "two"], odd
        assert len({item.identity + item.digest for item in items}) == 2
    for odd in ("&#xD83D;", "&#0;", "\0", "\x1f", "&#xFFFF;", "\ufffe"):
        assert one(f"<title>cut{odd}</title><guid>1{odd}</guid>").title.startswith("cut"), repr(odd)


def test_entries_that_share_a_link_are_items_of_their_own() -> None:
    def entries(*given: tuple[str, str]) -> list[Item]:
        entry = "<item><title>{}</title><link>https://x.test/polls/</link><pubDate>{} Jan 2024</pubDate></item>"
        return parse(rss("".join(entry.format(*one) for one in given)))

    items = entries(("one", "1"), ("two", "2"), ("one", "3"), ("one", "3"))
    assert [item.title for item in items] == ["one", "two", "one"]
    assert len({item.identity for item in items}) == 3
    later = entries(("two", "2"), ("one", "3"), ("three", "4"))
    assert [item.identity for item in later[:2]] == [item.identity for item in items[1:]]
    # an edit of the only entry is no new item
    assert len({item.identity for title in ("a", "b") for item in entries((title, "1"))}) == 1


def test_what_is_no_feed_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for body, words in [
        (b"", "not a feed: neither"), (b"hello", "not a feed: neither"),
        (b"<!DOCTYPE html><html></html>", "a web page, not a feed"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "XML, but not a feed"),
        (b'{"items": []}', "JSON, but not a feed"),
        (b'{"version": "https://jsonfeed.org/version/1", "items": 3}', "no list of items"),
        (b'{"version": ', "not valid JSON"), (b"<rss><channel>", "not well-formed XML: no element found"),
        (b"\0\0\0", "not a feed: neither"),
    ]:  # fmt: skip
        assert words in refusal(body), body
    # without feedparser the error says what to install
    monkeypatch.setitem(sys.modules, "feedparser", None)
    assert 'pip install "ravi-django[feeds]"' in refusal(rss(""))


def test_words_of_strangers_become_plain_text() -> None:
    # markup and scripts become text
    item = one(
        "<title>&lt;b&gt;Big&lt;/b&gt; &lt;script&gt;steal()&lt;/script&gt;news &amp;amp; more</title>"
        "<description>&lt;img src=x onerror=steal() alt='A cat'&gt;&lt;style&gt;x&lt;/style&gt;&lt;a "
        "href='javascript:steal()'&gt;here&lt;/a&gt;</description>"
    )
    assert (item.title, item.text) == ("Big news & more", "[A cat]here")
    # a link that is no address of the web is dropped
    for link in ["javascript:steal()", "data:text/html,x", "file:///etc/passwd", "https://a b/", "x" * 3000]:
        assert one(f"<title>t</title><link>{link}</link>").url == "", link
    # nul and control characters are left out
    body = rss("<item><title>a\0b\x07c&#x202e;</title><description>d&#0;e</description></item>")
    (item,) = parse(body)
    assert item.title == "a b c\u202e"
    assert "\0" not in item.text
    # bytes of no encoding do no harm
    (item,) = parse(rss("<item><title>a?b</title></item>").replace(b"?", b"\xff"), "text/xml; charset=utf-8")
    assert item.title == "a\ufffdb"
    # bare ampersands and entities of html are fixed
    assert one("<title>Fish & chips &amp; tea &nosuch; &hellip;</title>").title == "Fish & chips & tea &nosuch; …"
    # a prefix that was never bound does not lose the feed
    assert one("<title>t</title><media:thumbnail url='x'/>").title == "t"
    # dates that are none are left out
    for date in ["", "yesterday", "Sat, 07 Sep 0000 00:00:01 GMT"]:
        assert one(f"<title>t</title><pubDate>{date}</pubDate>").published == "", date


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (rss("<item><title>ü</title></item>"), ""),
        (rss("<item><title>ü</title></item>").decode().encode("latin-1"), "text/xml; charset=iso-8859-1"),
        (
            b'<?xml version="1.0" encoding="windows-1252"?>'
            + rss("<item><title>ü</title></item>").decode().encode("latin-1"),
            "text/xml; charset=nonsense",
        ),
        (
            b'<?xml version="1.0" encoding="nonsense"?>' + rss("<item><title>ü</title></item>"),
            "x; charset=also-nonsense",
        ),
        (rss("<item><title>ü</title></item>").decode().encode("utf-16"), ""),
        (rss("<item><title>ü</title></item>").decode().encode("utf-16-be"), ""),
        (rss("<item><title>&uuml;</title></item>"), ""),
    ],
)
def test_encodings_are_made_out(body: bytes, kind: str) -> None:
    assert [item.title for item in parse(body, kind)] == ["ü"]


def test_which_items_are_taken() -> None:
    # items without an id are known by their link or their words
    linked, worded, same = parse(
        rss("<item><title>b</title></item><item><title>a</title></item><item><link>https://x.test/</link></item>")
    )
    assert (linked.url, worded.title, same.title) == ("https://x.test/", "a", "b")
    assert len({linked.identity, worded.identity, same.identity}) == 3

    assert parse(rss("<item/><item><title> </title></item>")) == []
    # the newest two hundred are taken
    day = "<item><guid>{0}</guid><title>t</title><pubDate>{1}, 00:00:00 GMT</pubDate></item>"
    dates = [time.strftime("%a, %d %b %Y", time.gmtime(number * 86400)) for number in range(10_000)]
    old_first = rss("".join(day.format(number, date).replace(", 00", " 00") for number, date in enumerate(dates)))
    items = parse(old_first)
    assert [item.id for item in items] == [str(number) for number in range(9800, 10_000)]


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
R, E = b'<rss version="2.0"><channel>', b"</channel></rss>"
NAMED = b" ".join(b"a%d='x'" % number for number in range(60))
HTML_BOMB = b"&lt;a " * 15_000
KEYWORDS = ",".join(map(hex, range(20_000))).encode()
CODED = base64.encodebytes(b"a.b" * 7000)
TAGS = "10000 categories and keywords"
BOMBS: dict[str, tuple[bytes, str]] = {
    "billion laughs": (f'<!DOCTYPE r [<!ENTITY l0 "ha">{LAUGHS}]><rss>&l9;</rss>'.encode(), "declares entities"),
    "external entity": (b'<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><rss>&x;</rss>', "declares entities"),
    "parameter entity": (b'<!DOCTYPE r [<!ENTITY % x SYSTEM "http://x.test/">%x;]><rss/>', "declares entities"),
    "entities in utf-16": ('<!DOCTYPE r [<!ENTITY x "y">]><rss>&x;</rss>'.encode("utf-16"), "declares entities"),
    "nested without end": (R + b"<a>" * (MEGABYTES // 3), "elements deep"),
    "elements": (R + b"<a/>" * (MEGABYTES // 4) + E, "more than 150000 elements"),
    "attributes": (R + b"<a " + NAMED + b"/>" + E, "more than 50 attributes"),
    "namespaces": (R + b"".join(b"<a xmlns:x%d='u'/>" % number for number in range(200)) + E, "100 namespaces"),
    "an address without an at": (
        R + b"<item><author>" + b"a.b" * (MEGABYTES // 3) + b"</author></item>" + E,
        "a word of",
    ),
    "a coded address": (
        R + b"<item><content type='xml'><author>" + CODED + b"</author></content></item>" + E,
        "a word of",
    ),
    "keywords": (R + b"<item><itunes:keywords>" + KEYWORDS + b"</itunes:keywords></item>" + E, TAGS),
    "keywords without a prefix": (R + b"<item><media_keywords>" + KEYWORDS + b"</media_keywords></item>" + E, TAGS),
    "categories": (R + b"<item>" + b"<category domain='a'>x</category>" * 12_000 + b"</item>" + E, TAGS),
    "categories of all": (
        R + (b"<item/>" + b"".join(b"<dc_subject>%x</dc_subject>" % n for n in range(100))) * 200 + E,
        TAGS,
    ),
    "as many categories as may be": (
        R + b"<item>" + b"".join(b"<category domain='%0200d'>x</category>" % n for n in range(10_000)) + b"</item>" + E,
        "",
    ),
    "brackets": (b"<rss>" + b"<" * MEGABYTES, "not well-formed"),
    "json": (b'{"a":' * 1_000_000, "not valid JSON"),
    "texts made to be slow": (
        R + (b"<item><title>t</title><description>" + HTML_BOMB + b"</description></item>") * 50 + E,
        "",
    ),
    "many people": (R + (b"<item><author>" + b"a.b" * 39 + b"</author></item>") * 37_000 + E, ""),
    "one text": (R + b"<item><title>" + b"x\n" * (MEGABYTES // 2) + b"</title></item>" + E, ""),
}


# Large bombs, and variants of the others.
FULL = {
    "keywords without a prefix", "categories of all",
    "as many categories as may be", "texts made to be slow", "many people", "one text",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in FULL else name for name in BOMBS]
)
def test_a_bomb_is_over_in_seconds(name: str) -> None:
    body, words = BOMBS[name]
    begun = time.thread_time()
    try:
        parse(body, url=URL)
        said = ""
    except SourceError as error:
        said = str(error)
    assert words in said
    assert time.thread_time() - begun < 30.0, "of the CPU; about 6 at the most on a quiet machine"


def test_much_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    # many items with categories are no bomb
    tags = "".join(f"<category>{number}, or so</category>" for number in range(12))
    items = parse(rss(f"<item><title>t</title>{tags}<itunes:keywords>a,b,c</itunes:keywords></item>" * 500))
    assert items[0].extra["tags"] == [*(f"{number}, or so" for number in range(12)), "a", "b", "c"]
    # a bombs texts are cut
    item = one(f"<title>{'t' * 100_000}</title><description>{'d' * 1_000_000}</description>")
    assert (len(item.title), len(item.text)) == (500, 20_000)
    # texts that take too long are given up
    monkeypatch.setattr("ravi_django.wings.feeds.fetching.parse.BOUND_S", -1.0)
    assert "took more than" in refusal(rss("<item><title>t</title></item>"))


def test_an_item_is_known_by_its_id() -> None:
    item, edited, other = Item(id="1", title="a"), Item(id="1", title="b"), Item(id="2", title="a")
    assert item.identity == edited.identity != other.identity
    assert item.digest != edited.digest
    assert item.digest == Item(id="1", title="a", url="https://x.test/", published="2024").digest
    # ids and addresses that are too long still tell items apart
    long = "x" * 5000
    ids = {Item(id=long + end).identity for end in "ab"}
    addresses = {Item(url=f"https://x.test/{long}{end}").identity for end in "ab"}
    assert (len(ids), len(addresses)) == (2, 2)
    assert len(Item(id=long).id) < 100
    # extra is a bounded json object
    for extra, words in [([], "must be a dict"), ({"a": object()}, "not JSON"), ({"a": "x" * 70_000}, "the limit")]:
        with case(extra, words), pytest.raises(ValueError, match=words):
            Item(extra=extra)
