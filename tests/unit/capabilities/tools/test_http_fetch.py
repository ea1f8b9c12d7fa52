"""Fetching: named hosts alone, never an address inside, and never more than was asked for."""

import asyncio
import gzip
import socket
import ssl
import subprocess
import zlib

import pytest

from ravi_django.calls.net import outbound
from ravi_django.calls.net.outbound import is_permitted
from ravi_django.capabilities.tools import HttpFetchTool
from ravi_django.kernel import Effect, Risk, ToolArgumentsError, ToolRefused
from tests.support.cases import case
from tests.support.feed_server import serving

HOME = "127.0.0.0/8"
PAGE = b"<html><head><title>T</title><script>no()</script></head><body><p>Hello <a href='/x'>there</a></body></html>"


@pytest.fixture
def server():
    with serving() as server:
        yield server


class Resolver:
    def __init__(self, **hosts):
        self.hosts = {name.replace("_", "."): answers for name, answers in hosts.items()}
        self.asked = []

    async def __call__(self, host, port):
        self.asked.append(host)
        answers = self.hosts.get(host, [])
        return answers.pop(0) if answers and isinstance(answers[0], list) else list(answers)


def fetcher(server, **options):
    defaults = {
        "allow": ["site.test", "*.site.test"], "ports": [server.server_port], "allow_addresses": [HOME],
        "resolver": Resolver(site_test=["127.0.0.1"], sub_site_test=["127.0.0.1"]),
    }  # fmt: skip
    return HttpFetchTool(**{**defaults, **options})


def fetch(tool, url, **arguments):
    return asyncio.run(tool.execute(**tool.validate({"url": url, **arguments})))


def refusal(tool, url, **arguments):
    with pytest.raises(ToolRefused) as refused:
        fetch(tool, url, **arguments)
    return str(refused.value)


def url_of(server, path="/", host="site.test"):
    return f"http://{host}:{server.server_port}{path}"


def test_a_page_is_read_as_text(server):
    tool = HttpFetchTool()
    assert (tool.name, tool.risk, tool.promised_effect) == ("http_fetch", Risk.SAFE, Effect.IDEMPOTENT)
    assert set(tool.parameters["properties"]) == {"url", "method"}
    server.answers["/"] = (200, {"Content-Type": "text/html; charset=utf-8"}, PAGE)
    answer = fetch(fetcher(server), url_of(server))
    home = url_of(server)
    assert answer == f"200 OK {home} (text/html)\n\nT\nHello there <{home}x>"
    # text is shown and nothing else
    for kind, body, text in [
        ("application/json", '{"é": 1}'.encode(), '{"é": 1}'), ("application/problem+json", b"{}", "{}"),
        ("text/plain; charset=latin-1", "é".encode("latin-1"), "é"),
        ("text/plain; charset=zlib_codec", b"x", "x"),
        ("text/plain; charset=idna", b"x", "x"), ("text/plain", b"\xff", "\ufffd"), ("image/png", b"\x89PNG", None),
        ("application/octet-stream", b"x", None),
    ]:  # fmt: skip
        with case(kind, body, text):
            server.answers["/"] = (200, {"Content-Type": kind}, body)
            answer = fetch(fetcher(server), url_of(server))
            head, _, shown = answer.partition("\n")
            assert head.startswith("200 OK ")
            assert shown == ("[the body is not text and is not shown]" if text is None else f"\n{text}")
    # an error of the server is told
    assert fetch(fetcher(server), url_of(server, "/none")) == (
        f"404 Not Found {url_of(server, '/none')} (text/plain)\n\nnothing here"
    )


def test_methods(server):
    with pytest.raises(ToolArgumentsError, match="method"):
        fetch(fetcher(server), url_of(server), method="POST")
    with pytest.raises(ToolArgumentsError, match="HEAD is not allowed here; use GET"):
        fetch(fetcher(server, methods=["GET"]), url_of(server), method="HEAD")
    assert server.seen == []
    server.answers["/"] = (200, {"Content-Type": "text/html"}, PAGE)
    assert fetch(fetcher(server), url_of(server), method="HEAD") == f"200 OK {url_of(server)} (text/html)"
    assert server.methods == ["HEAD"]


def test_a_body_is_cut_at_the_limit(server):
    for encoding in ["identity", "gzip", "deflate"]:
        with case(encoding):
            body = b"x" * 5_000_000  # 5 kB as gzip
            packed = {"identity": body, "gzip": gzip.compress(body), "deflate": zlib.compress(body)}[encoding]
            server.answers["/"] = (200, {"Content-Type": "text/plain", "Content-Encoding": encoding}, packed)
            answer = fetch(fetcher(server, max_bytes=1000), url_of(server))
            assert answer.endswith("\n\n" + "x" * 1000 + "\n[cut here: only the first 1000 bytes were read]")
    server.answers["/"] = (200, {"Content-Type": "text/plain"}, b"x" * 1000)
    assert fetch(fetcher(server, max_bytes=1000), url_of(server)).endswith("\n\n" + "x" * 1000)


ONE, TWO = gzip.compress(b"one sentence. "), gzip.compress(b"Another one.")
RAW = zlib.compressobj(wbits=-15)
RAW = RAW.compress(b"one sentence. Another one.") + RAW.flush()
CLOSE = {"Connection": "close"}


def test_a_packed_body_is_read_whole(server):
    for encoding, body, headers in [
        ("gzip", ONE + TWO, {}), ("X-GZip", gzip.compress(b"") + ONE + TWO + b"\0\0 not gzip", {}),
        ("identity, gzip", ONE + TWO, {}), ("deflate", zlib.compress(b"one sentence. Another one.") + b"more", {}),
        ("deflate", RAW, {}), ("", b"1a\r\none sentence. Another one.\r\n0\r\n\r\n", {"Transfer-Encoding": "chunked"}),
    ]:  # fmt: skip
        with case(encoding, body):
            server.answers["/"] = (200, {"Content-Encoding": encoding, **headers}, body)
            assert fetch(fetcher(server), url_of(server)).endswith("\n\none sentence. Another one.")
            pieces = [body[index : index + 1] for index in range(len(body))]
            if not headers:
                assert bounded(Streamed(pieces, encoding)) == (b"one sentence. Another one.", False)


def test_a_body_that_is_cut_or_coded_otherwise_is_an_error(server):
    for encoding, body, headers, words in [
        ("gzip", ONE[: len(ONE) // 2], {}, "incomplete"), ("gzip", ONE[:-1], {}, "incomplete"),
        ("gzip", ONE[:1], {}, "incomplete"), ("gzip", ONE + TWO[:-9], {}, "incomplete"),
        ("deflate", zlib.compress(b"x" * 99)[:-1], {}, "incomplete"), ("deflate", RAW[:-1], {}, "incomplete"),
        ("gzip", b"no such thing", {}, "could not be decompressed"),
        ("gzip", ONE[:-8] + b"\0" * 8, {}, "could not be decompressed"),
        ("gzip", gzip.compress(b"") * 1001, {}, "more than 1000 gzip members"),
        ("br", b"x", {}, "unsupported encoding: 'br'"),
        ("gzip, gzip", gzip.compress(ONE), {}, "unsupported encoding: 'gzip, gzip'"),
        ("", b"half", {"Content-Length": "8", **CLOSE}, "could not be reached"),
        ("", b"8\r\nhalf", {"Transfer-Encoding": "chunked", **CLOSE}, "could not be reached"),
    ]:  # fmt: skip
        with case(encoding, body, words):
            server.answers["/"] = (200, {"Content-Encoding": encoding, **headers}, body)
            assert words in refusal(fetcher(server), url_of(server))


def test_labels_of_encodings_mean_what_they_mean_to_browsers(server):
    for label, text, codec in [
        ("gb2312", "朱镕基", "gbk"), ("GB_2312-80", "𠮷", "gb18030"), ("Shift_JIS", "第①回", "cp932"),
        ("x-sjis", "㈱", "cp932"), ("iso-8859-1", "“café”", "cp1252"), ("us-ascii", "€", "cp1252"),
        ("ISO8859-1", "™", "cp1252"), ("iso-8859-9", "ş…", "cp1254"), ("tis-620", "“ก”", "cp874"),
        ("ks_c_5601-1987", "똠방각하", "cp949"), ("euc-kr", "펲시", "cp949"), ("big5", "㗎", "big5hkscs"),
        ("x-x-big5", "中", "big5"), ("iso-8859-8-i", "שלום", "iso8859-8"), ("x-mac-cyrillic", "Я", "mac-cyrillic"),
        ("koi8-ru", "Ґ", "koi8-u"), ("unicode", "é", "utf-16-le"), ("utf8", "é", "utf-8"), ("utf-7", "+AGE-", "ascii"),
        ("nonsense", "é", "utf-8"), ("iso-8859-15", "€", "iso8859-15"), ("x-user-defined", "é", "cp1252"),
    ]:  # fmt: skip
        with case(label, text):
            server.answers["/"] = (200, {"Content-Type": f"text/plain; charset={label}"}, text.encode(codec))
            assert fetch(fetcher(server), url_of(server)).endswith(f"\n\n{text}")


def test_the_encoding_of_a_page_is_found_where_browsers_look(server):
    for kind, head, encoding in [
        ("text/html", "<meta charset=gb2312>", "gbk"),
        ("text/html", "<META HTTP-EQUIV=Content-Type CONTENT='text/html; charset=GB2312'>", "gbk"),
        ("text/html; charset=gbk", "<meta charset=utf-8>", "gbk"),
        ("text/html; charset=nonsense", "<meta charset=gbk>", "gbk"),
        ("text/html", "<!-- <meta charset=big5> --><meta name=x content=y><meta charset='gbk'>", "gbk"),
        ("text/html", "<meta charset=utf-16>", "utf-8"),
        ("text/html; charset=gbk", "\ufeff<meta charset=gbk>", "utf-8"),
        ("text/html; charset=utf-8", "\ufeff<meta charset=utf-8>", "utf-16-be"),
        ("application/xhtml+xml", "<?xml version='1.0' encoding='gb2312'?>", "gbk"),
        ("application/xml", "<?xml version='1.0' encoding='gb2312'?>", "gbk"),
    ]:  # fmt: skip
        with case(kind, head):
            server.answers["/"] = (200, {"Content-Type": kind}, f"{head}<p>朱镕基</p>".encode(encoding))
            assert "朱镕基" in fetch(fetcher(server), url_of(server))


def test_a_bomb_is_not_unpacked(server, monkeypatch):
    unpacked = []

    class Counting:
        def __init__(self, *args):
            self._real = real(*args)

        def decompress(self, *args):
            unpacked.append(self._real.decompress(*args))
            return unpacked[-1]

        def __getattr__(self, name):
            return getattr(self._real, name)

    real = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    server.answers["/"] = (200, {"Content-Encoding": "gzip"}, gzip.compress(b"x" * 50_000_000))

    fetch(fetcher(server, max_bytes=1000), url_of(server))

    assert sum(map(len, unpacked)) == 1001


def test_no_answer_is_told(server):
    server.hold.clear()
    assert refusal(fetcher(server, timeout_s=0.1), url_of(server)) == "there was no complete response within 0.1 s"
    # a server that is not there is told
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tool = HttpFetchTool(
        ["site.test"], ports=[port], allow_addresses=[HOME], resolver=Resolver(site_test=["127.0.0.1"])
    )
    assert refusal(tool, f"http://site.test:{port}/").startswith("the server could not be reached: ")


def test_by_default_no_host_is_allowed(server):
    tool = fetcher(server, allow=[])
    assert refusal(tool, url_of(server)) == "the host 'site.test' is not allowed; no host is allowed"
    assert (server.seen, tool._resolve.asked) == ([], [])
    # a pattern of subdomains does not name the domain
    assert "is not allowed" in refusal(fetcher(server, allow=["*.site.test"]), url_of(server))
    # other ports are refused
    tool = fetcher(server, ports=[])
    assert refusal(tool, url_of(server)) == f"port {server.server_port} is not allowed; allowed are 80, 443"
    # an address is allowed by its network alone
    assert is_permitted("10.1.2.3", HttpFetchTool(allow_addresses=["10.1.0.0/16"])._networks)
    assert is_permitted("::ffff:10.1.2.3", HttpFetchTool(allow_addresses=["10.1.0.0/16"])._networks)
    assert not is_permitted("10.2.0.1", HttpFetchTool(allow_addresses=["10.1.0.0/16"])._networks)


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("site.test", True), ("SITE.Test", True), ("site.test.", True), ("sub.site.test", True),
        ("evilsite.test", False), ("site.test.evil.org", False), ("site", False), ("test", False),
        (".site.test", False),
    ],
)  # fmt: skip
def test_only_the_named_hosts_are_asked(server, host, may):
    tool = fetcher(server)
    if may:
        assert fetch(tool, url_of(server, host=host)).startswith("404")
        assert server.seen[0][1]["host"].lower().split(":")[0] in ("site.test", "sub.site.test")
    else:
        assert "is not allowed; allowed are site.test, *.site.test" in refusal(tool, url_of(server, host=host))
        assert tool._resolve.asked == []


@pytest.mark.parametrize("name", ["bücher.test", "BÜCHER.test", "xn--bcher-kva.test"])
@pytest.mark.parametrize("allowed", ["bücher.test", "xn--bcher-kva.test"])
def test_international_names_are_one_however_written(server, name, allowed):
    resolver = Resolver()
    resolver.hosts["xn--bcher-kva.test"] = ["127.0.0.1"]
    answer = fetch(fetcher(server, allow=[allowed], resolver=resolver), url_of(server, host=name))
    assert answer.startswith("404")
    assert resolver.asked == ["xn--bcher-kva.test"]


def test_what_is_no_address_of_the_web_is_refused(server):
    for url in [
        "ftp://site.test/", "file:///etc/passwd", "gopher://site.test/", "javascript:alert(1)", "//site.test/",
        "site.test", "", "http://", "http:///path", "http://[::1", "http://site.test:x/", "http://" + "a" * 5000,
        "data:text/plain,x",
    ]:  # fmt: skip
        with case(url):
            assert "not a valid URL" in refusal(fetcher(server), url)
            assert server.seen == []
    for user in ["ann@", "ann:secret@", ":@", "evil.test%40"]:
        with case(user):
            words = refusal(fetcher(server, allow=["*"]), f"http://{user}site.test:{server.server_port}/")
            assert "user name" in words or "was not found" in words
            assert server.seen == []


INSIDE = (
    *(
        "127.0.0.1 127.1.2.3 10.0.0.1 172.16.0.1 192.168.1.1 100.64.0.1 169.254.169.254 0.0.0.0 0.1.2.3 "
        "192.0.2.1 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 ::ffff:127.0.0.1 "
        "::ffff:169.254.169.254 ::ffff:10.0.0.1 ::127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe "
        "64:ff9b:1::1 2002:7f00:1:: 2001:0:7f00:1:: fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 fec0::1 "
        "ff02::1 2001:db8::1"
    ).split(),
    "not an address",
)


def test_no_address_inside_is_connected_to(server, monkeypatch):
    # public addresses are permitted
    for address in ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]:
        assert is_permitted(address), address
    for address in INSIDE:
        with case(address):
            monkeypatch.setattr("httpx.AsyncClient.send", None)
            resolver = Resolver(site_test=["93.184.215.14", address])  # one bad answer is enough
            words = refusal(fetcher(server, allow_addresses=[], resolver=resolver), "http://site.test/")
            assert words == "the host 'site.test' is in a network that is not allowed"


@pytest.mark.parametrize(
    "host",
    (
        *(
            "127.0.0.1 2130706433 0x7f000001 0x7f.1 0177.0.0.1 127.1 0.0.0.0 0 [::1] [::] [::ffff:127.0.0.1] "
            "[::ffff:7f00:1] [64:ff9b::7f00:1] localhost LOCALHOST. 169.254.169.254"
        ).split(),
        "127\u30020\u30020\u30021",
        "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
    ),
)
def test_however_an_address_inside_is_written_it_is_refused(server, host):
    """With the system's own resolver, and every host allowed."""
    tool = fetcher(server, allow=["*"], allow_addresses=[], resolver=None)
    words = refusal(tool, url_of(server, host=host))
    assert "network that is not allowed" in words or "not a valid URL" in words or "was not found" in words
    assert server.seen == []


def test_the_address_that_was_checked_is_the_one_connected_to(server, monkeypatch):
    """A name that resolves to another address a moment later gains nothing."""
    resolver = Resolver()
    resolver.hosts["site.test"] = [["127.0.0.1"], ["169.254.169.254"], ["10.0.0.1"]]
    looked_up = []
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **kw: looked_up.append(host) or real(host, *args, **kw)
    )

    answer = fetch(fetcher(server, resolver=resolver), url_of(server))

    assert answer.startswith("404")
    assert resolver.asked == ["site.test"]
    assert {str(host) for host in looked_up} <= {"127.0.0.1"}
    assert server.seen[0][1]["host"] == f"site.test:{server.server_port}"


def test_a_redirect_to_inside_is_refused_though_every_host_is_allowed(server):
    # a rebinding name is checked anew on a redirect
    resolver = Resolver()
    resolver.hosts["site.test"] = [["127.0.0.1"], ["169.254.169.254"]]
    server.answers["/"] = (302, {"Location": "/next"}, b"")
    words = refusal(fetcher(server, resolver=resolver), url_of(server))
    assert "network that is not allowed" in words
    assert server.paths() == ["/"]
    server.answers["/"] = (302, {"Location": "http://169.254.169.254/"}, b"")
    resolver = Resolver(site_test=["127.0.0.1"])
    resolver.hosts["169.254.169.254"] = ["169.254.169.254"]
    assert "network that is not allowed" in refusal(fetcher(server, allow=["*"], resolver=resolver), url_of(server))


@pytest.mark.parametrize(("location", "words"), [
    ("http://169.254.169.254/latest/meta-data/", "the host '169.254.169.254' is not allowed"),
    ("http://other.test/", "the host 'other.test' is not allowed"), ("http://ann:secret@site.test/", "user name"),
    ("ftp://site.test/", "not a valid URL"), ("file:///etc/passwd", "not a valid URL"),
    ("http://site.test:22/", "port 22 is not allowed"), ("http://[::1", "could not be reached: Invalid URL"),
])  # fmt: skip
def test_a_redirect_is_checked_as_the_address_was(server, location, words):
    server.answers["/"] = (302, {"Location": location}, b"")
    assert words in refusal(fetcher(server), url_of(server))
    assert len(server.seen) == 1


@pytest.mark.parametrize(("hops", "arrives"), [(5, True), (6, False)])
def test_so_many_redirects_are_followed(server, hops, arrives):
    for hop in range(hops):
        server.answers[f"/{hop}"] = (301, {"Location": f"/{hop + 1}"}, b"")
    server.answers[f"/{hops}"] = (200, {"Content-Type": "text/plain"}, b"arrived")
    if arrives:
        answer = fetch(fetcher(server), url_of(server, "/0"))
        assert answer == f"200 OK {url_of(server, f'/{hops}')} (text/plain)\n\narrived"
    else:
        assert refusal(fetcher(server), url_of(server, "/0")) == "more than 5 redirects"


def test_nothing_of_one_server_reaches_the_next(server, monkeypatch):
    server.answers["/"] = (302, {"Location": "/next", "Set-Cookie": "a=b"}, b"")
    fetch(fetcher(server), url_of(server))
    headers = {name for _, given in server.seen for name in given}
    assert headers <= {"host", "user-agent", "accept", "accept-encoding", "connection"}
    # proxies of the environment are not used
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetch(fetcher(server), url_of(server)).startswith("404")
    # certificates are read once
    read = []
    create = ssl.create_default_context
    outbound.trust.cache_clear()
    monkeypatch.setattr(
        ssl, "create_default_context", lambda *args, **kwargs: read.append(1) or create(*args, **kwargs)
    )
    for _ in range(3):
        fetch(fetcher(server), f"http://site.test:{server.server_port}/")
    assert len(read) == 1


def test_over_tls_the_name_is_checked_and_not_the_address(tmp_path):
    """A certificate that nobody vouches for is refused; the server was asked by its name."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=site.test -days 2 "
        f"-addext subjectAltName=DNS:site.test -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    names, trusted = [], ssl.create_default_context(cafile=str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.sni_callback = lambda _, name, __: names.append(name)
    with serving(context) as server:
        address = f"https://site.test:{server.server_port}/"
        words = refusal(fetcher(server), address)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outbound, "trust", lambda: trusted)
            answer = fetch(fetcher(server), address)
            other = fetcher(server, allow=["other.test"], resolver=Resolver(other_test=["127.0.0.1"]))
            elsewhere = refusal(other, address.replace("site", "other"))
    assert "certificate" in words.lower() and answer.startswith("404")
    assert "certificate" in elsewhere.lower()
    assert names == ["site.test", "site.test", "other.test"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow": "example.org"}, "allow must be a list"),
        ({"allow": ["https://example.org"]}, "allow has 'https://example.org'"),
        ({"allow": ["example.org/x"]}, "allow has"), ({"allow": [""]}, "allow has ''"),
        ({"allow": ["*.*.org"]}, "allow has"), ({"methods": ["POST"]}, "methods are GET and HEAD"),
        ({"methods": []}, "methods are GET and HEAD"), ({"allow_addresses": ["here"]}, "here"),
        ({"allow_addresses": "10.0.0.0/8"}, "allow_addresses must be a list"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_named(options, words):
    with pytest.raises(ValueError) as refused:
        HttpFetchTool(**options)
    assert words in str(refused.value)


class Streamed:
    """An answer that counts what is read of it."""

    def __init__(self, pieces, encoding="gzip"):
        self.headers = {"content-encoding": encoding}
        self.pieces, self.read = pieces, 0

    async def aiter_raw(self):
        for piece in self.pieces:
            self.read += len(piece)
            yield piece


def bounded(response, limit=1000):
    return asyncio.run(outbound.bounded(response, limit))


def test_what_is_read_of_a_packed_body():
    # what comes behind the end of a packed body is not read
    response = Streamed([gzip.compress(b"text"), *[b"x" * 1000] * 100])
    assert bounded(response) == (b"text", False)
    assert response.read < 2000
    # a packed body without content has an end
    head = b"\x1f\x8b\x08\x08" + b"\0" * 5 + b"\x03"  # a file's name comes next, and never ends
    response = Streamed([head, *[b"x" * 1000] * 1000])
    assert bounded(response) == (b"", True)
    assert response.read <= 1000 + outbound.PACKING + 1000
