"""What outbound HTTP reads of an answer, and how it looks up names."""

import asyncio
import socket
import threading

import pytest

from ravi_django.calls.net import outbound
from ravi_django.calls.net.html_text import readable
from tests.support.patience import BOUND_S, seconds


def test_html_is_read():
    for html, text in [
        ("<p>a</p><p>b", "a\nb"), ("a<br>b<br/>c", "a\nb\nc"),
        ("<script>x<y</script>after<style>p{}</style>", "after"),
        ("<noscript>x</noscript>y<svg><text>z</text></svg>", "y"), ("&lt;b&gt; &amp; &eacute;", "<b> & é"),
        ("<a href='https://a.test/'>w</a>", "w <https://a.test/>"),
        ("<a href='javascript:x'>w</a><a href='#top'>up</a>", "wup"), ("<img alt='a cat' src=x>", "[a cat]"),
        ("a  \n\n b", "a b"), ("AT&amp;T and R&D", "AT&T and R&D"), ("R&D &copy 2024 &#153; &am", "R&D © 2024 ™ &am"),
        ("x &amp", "x &"), ("x &#8364", "x €"), ("I <3 x <", "I <3 x <"), ("<p>A&amp;B <b", "A&B"),
        ("<title>T</title><h1>H</h1>", "T\nH"), ("<p unfinished", ""), ("", ""),
    ]:  # fmt: skip
        assert readable(html) == text, html


def test_names_that_are_never_answered_take_no_thread_of_the_loop(monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: held.wait(seconds(100)) and [])

    async def story():
        lookups = outbound.Lookups(2)
        asking = [asyncio.ensure_future(lookups.addresses("slow.example", 443)) for _ in range(8)]
        await asyncio.sleep(0)
        with pytest.raises(outbound.Unreachable, match="too many hosts are being looked up"):
            await lookups.addresses("slow.example", 443)
        free = await asyncio.wait_for(asyncio.to_thread(lambda: "free"), BOUND_S)
        for waiting in asking:
            waiting.cancel()
        await asyncio.wait(asking)
        held.set()
        while True:  # those that had not begun left at once, the others when they were answered
            try:
                return free, await asyncio.wait_for(lookups.addresses("slow.example", 443), BOUND_S)
            except outbound.Unreachable:
                await asyncio.sleep(0)

    assert asyncio.run(story()) == ("free", [])


def test_the_systems_resolver_is_asked_on_those_threads(monkeypatch):
    names = []

    def look(host, port, **kwargs):
        names.append((host, threading.current_thread().name))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    assert asyncio.run(outbound.resolve("example.org", 443)) == ["192.0.2.1"]
    assert names[0][0] == "example.org"
    assert names[0][1].startswith("ravi-lookup")
