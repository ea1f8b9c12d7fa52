"""Programs elsewhere run the agents of a real site: by `ravi_django.client`, and by `ravi-client.js` in Node."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from django.core.wsgi import get_wsgi_application
from django.template import engines
from rest_framework.authtoken.models import Token

import ravi_django
from project.process import wait_until
from project.services import free_port
from ravi_django.capabilities.tools import CalculatorTool
from ravi_django.client import ApiError, AsyncClient, Client
from ravi_django.models import Run, StreamArchive
from tests.acceptance.api.api_support import PAID, SCRIPT, call, pay, register_payers, registered
from tests.support import world
from tests.support.docs import ROOT, Page
from tests.support.network import Proxy
from tests.support.patience import BOUND_S
from tests.support.required import missing

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.full]

FILE = Path(ravi_django.__file__).parent / "static/ravi/ravi-client.js"
LEFT = "It left.\u2028Today."  # httpx and others break lines there
SITE = "https://example.com/ravi/"  # of the docs
PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)


@pytest.fixture
def key(demo: Any) -> str:
    return str(Token.objects.create(user=demo).key)


@pytest.fixture
def url(server: Any, worker: Any) -> str:
    refund = lambda messages, options: [call(5)] if "Refund" in str(messages[-1]) else LEFT  # noqa: E731
    register_payers()
    registered("counts", SCRIPT, tools=[CalculatorTool()])
    for key in ("shop", "helper", "refunds"):
        registered(key, [refund, LEFT], tools=[pay])
    return f"{server.url}/ravi/"


# ------------------------------------------------------------------------------- one program in each of the clients


def in_python(url: str, token: str, agent: str, frames: list[Any]) -> None:
    with Client(url, token) as client:
        for frame in client.stream(agent, "6 * 7?"):
            frames.append(frame)
            if frame["type"] == "request":
                client.answer(frame["id"], "approve")


def in_asyncio(url: str, token: str, agent: str, frames: list[Any]) -> None:
    async def main() -> None:
        async with AsyncClient(url, token) as client:
            async for frame in client.stream(agent, "6 * 7?"):
                frames.append(frame)
                if frame["type"] == "request":
                    await client.answer(frame["id"], "approve")

    asyncio.run(main())


def in_node(url: str, token: str, agent: str, frames: list[Any], sockets: bool = True) -> None:
    with TemporaryDirectory() as folder:
        said = {"url": url, "token": token, "agent": agent, "input": "6 * 7?", "sockets": sockets}
        said["module"] = str(shutil.copy(FILE, f"{folder}/ravi-client.mjs"))
        with node(ROOT / "tests/clients/ravi.mjs", json.dumps(said)) as process:
            for line in process.stdout or ():
                if "type" in (one := json.loads(line)):
                    frames.append(one)
                elif one["error"]:
                    raise ApiError(*one["error"])


def in_node_by_pages(*args: Any) -> None:
    in_node(*args, sockets=False)


def node(*argv: object) -> subprocess.Popen[str]:
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is missing: install Node 20 or newer")
    command = [found, "--experimental-websocket", "--no-warnings", *map(str, argv)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture(params=[pytest.param(in_python, marks=pytest.mark.gate), in_asyncio, in_node, in_node_by_pages])
def play(request: pytest.FixtureRequest, key: str) -> Iterator[Callable[..., tuple[Future[Any], list[Any]]]]:
    """`play(url, agent)`: the program, which runs on a thread, and the frames that it has."""
    with ThreadPoolExecutor() as threads:

        def played(url: str, agent: str, token: str = key) -> tuple[Future[Any], list[Any]]:
            frames: list[Any] = []
            return threads.submit(request.param, url, token, agent, frames), frames

        yield played


def text_of(frames: list[Any]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "text.delta")


def is_whole(frames: list[Any]) -> bool:
    """No gap, none twice, and an end."""
    numbers = [(frame.get("from_seq", frame["seq"]), frame["seq"]) for frame in frames]
    follows = all(first == last + 1 for (_, last), (first, _) in pairwise([(0, 0), *numbers]))
    return follows and frames[-1]["type"] == "stream.done"


def test_text_streams_after_a_tool(url: str, play: Any) -> None:
    program, frames = play(url, "react/counts")
    program.result(BOUND_S)

    results = [frame["content"]["text"] for frame in frames if frame.get("step") == "tool_result"]
    assert (results, text_of(frames), is_whole(frames)) == (["42"], "It is 42.", True)


def test_requests_are_answered_by_the_program(url: str, play: Any) -> None:
    program, frames = play(url, "react/payer")
    program.result(BOUND_S)

    assert (sorted(PAID), text_of(frames), is_whole(frames)) == ([5, 6], "done", True)


def test_a_broken_connection_is_opened_again_where_it_was(url: str, server: Any, paced: Any, play: Any) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        program, frames = play(f"http://127.0.0.1:{proxy.port}/ravi", "react/paced")
        for cut in range(1, 4):
            paced.let(3)
            assert wait_until(lambda: text_of(frames).count("w") == 3 * cut, BOUND_S)
            proxy.stall(BOUND_S if cut == 3 else 0)
            proxy.cut()
        paced.let_all()
        assert wait_until(lambda: StreamArchive.objects.exists(), BOUND_S)
        world.get_buffer().forget([str(Run.objects.get().id)])  # the archive has the text as one frame
        proxy.heal()
        program.result(BOUND_S)

    assert (text_of(frames), is_whole(frames)) == ("".join(paced.words), True)
    assert Run.objects.count() == 1


def test_above_the_limit_of_streams_pages_are_read(url: str, play: Any, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "LIMITS": {"streams": 0, "sockets": 0}}
    program, frames = play(url, "react/counts")
    program.result(BOUND_S)

    assert (text_of(frames), is_whole(frames)) == ("It is 42.", True)


def test_an_error_is_that_of_the_site(url: str, play: Any) -> None:
    for agent, token, expected in (
        ("react/nobody", {}, (404, "not_found")),
        ("react/counts", {"token": "x"}, (401, "unauthenticated")),
    ):
        with pytest.raises(ApiError) as refused:
            play(url, agent, **token)[0].result(BOUND_S)
        assert (refused.value.status, refused.value.code) == expected
        assert ("react/nobody" if expected[0] == 404 else "oken") in refused.value.message


# ------------------------------------------------------------------------------------------------- in Python alone


def test_a_submit_whose_answer_is_lost_is_submitted_once(url: str, server: Any, key: str, monkeypatch: Any) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        send = world.dispatch_send

        def sent(run: Any) -> None:  # it is committed, and its response is not sent yet
            proxy.cut()
            send(run)

        world.patch(monkeypatch, "dispatch_send", sent)
        with Client(f"http://127.0.0.1:{proxy.port}/ravi/", key) as client:
            assert client.run("react/counts", "6 * 7?")["output"] == "It is 42."

    assert (Run.objects.count(), proxy.accepted >= 2) == (1, True)


def test_what_is_wrong_is_said(url: str, server: Any, key: str) -> None:
    def problem(base: str, do: Callable[[Client], Any]) -> tuple[int, str, str | None, str]:
        with Client(base, key) as client, pytest.raises(ApiError) as found:
            do(client)
        return found.value.status, found.value.code, found.value.field, found.value.message

    status, code, _, message = problem(f"http://127.0.0.1:{free_port()}/ravi/", lambda client: client.cancel("x"))
    assert (status, code) == (0, "unreachable") and "/ravi/runs/x/cancel/ cannot be reached" in message
    status, code, _, message = problem(f"{server.url}/nothing/", lambda client: client.requests())
    assert (status, code) == (404, "") and "the URL of its mount?" in message
    assert problem(url, lambda client: client.submit("react/counts", ""))[:3] == (400, "invalid_input", "input")
    status, code, _, message = problem(url, lambda client: client.run("react/broken", "Hello."))
    assert (status, code) == (500, "failed") and "ModelError: no such model" in message


def test_a_new_program_continues_in_the_middle_of_an_archived_text(url: str, key: str, paced: Any) -> None:
    with Client(url, key) as client:
        first = client.stream("react/paced", "Go.")
        for frame in first:
            paced.let(1)
            if text_of([frame]) and frame["seq"] > 4:
                break
        paced.let_all()
        whole = list(client.events(frame["run"]))
        assert wait_until(lambda: StreamArchive.objects.exists(), BOUND_S)
        world.get_buffer().forget([frame["run"]])

        later = list(client.events(frame["run"], frame["seq"]))
        assert list(client.events(frame["run"], whole[-1]["seq"])) == []

    assert later[0].get("from_seq", later[0]["seq"]) == frame["seq"] + 1
    assert text_of(later) == text_of([one for one in whole if one["seq"] > frame["seq"]])


def test_after_a_submit_an_error_names_the_run(url: str, server: Any, key: str, monkeypatch: Any) -> None:
    with Client(url, key, headers={"X-Program": "1"}, follow_redirects=True) as client:
        with pytest.raises(ApiError) as late:
            client.run("react/payer", "Pay.", timeout=0)
        with pytest.raises(ApiError) as failed:
            client.run("react/broken", "Hello.")

    assert (late.value.code, failed.value.code) == ("timeout", "failed")
    assert {late.value.run, failed.value.run} == {str(id) for id in Run.objects.values_list("id", flat=True)}


def test_a_submit_above_the_rate_waits_as_long_as_the_site_asks(url, key, settings, monkeypatch) -> None:
    settings.RAVI = {**settings.RAVI, "LIMITS": {"submit": 1}}
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            waited.append(seconds)
            settings.RAVI = {**settings.RAVI, "LIMITS": {}}

    with Client(url, key) as client:
        client.submit("react/counts", "One?")
        monkeypatch.setattr("time.sleep", sleep)
        client.submit("react/counts", "Two?")

    assert len(waited) == 1 and 1 <= waited[0] <= 60


def test_requests_are_listed_over_all_pages(url: str, key: str) -> None:
    with Client(url, key) as client:
        runs = [client.submit("react/payer", "Pay.")["id"] for _ in range(2)]
        assert wait_until(lambda: len(client.requests()) == 4, BOUND_S)
        assert [row["id"] for row in client.requests(limit=1)] == [row["id"] for row in client.requests()]
        assert wait_until(
            lambda: {client.call("GET", f"runs/{run}/")["status"] for run in runs} == {"suspended"}, BOUND_S
        )
        assert {client.cancel(run, "enough")["error"]["message"] for run in runs} == {"enough"}
        assert client.requests() == []


def test_a_wsgi_site_is_read_in_pages(url: str, key: str) -> None:
    """As gunicorn serves it. What the worker writes does not depend on the web server."""
    django = get_wsgi_application()

    class Silent(WSGIRequestHandler):
        def log_message(self, *args: Any) -> None: ...

    def application(environ: Any, start: Any) -> Any:
        return django({**environ, "SERVER_SOFTWARE": "gunicorn"}, start)

    with make_server("127.0.0.1", 0, application, handler_class=Silent) as wsgi:
        thread = threading.Thread(target=wsgi.serve_forever, args=[0.02])
        thread.start()
        with Client(f"http://127.0.0.1:{wsgi.server_port}/ravi/", key) as client:
            frames = list(client.stream("react/counts", "6 * 7?"))
        wsgi.shutdown()
        thread.join()

    assert (text_of(frames), is_whole(frames)) == ("It is 42.", True)


def test_the_module_needs_no_django() -> None:
    program = "import sys, ravi_django.client; print([name for name in sys.modules if name.startswith('django')])"

    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={}, capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


# --------------------------------------------------------------------------------------------------- in Node alone

NETWORK = """
const pauses = [], calls = [];
globalThis.setTimeout = (done, ms) => { pauses.push(ms); setImmediate(done); };
globalThis.fetch = async (url, options) => { calls.push(options); return answers.shift()(options); };
delete globalThis.WebSocket;
const json = (body, init) => () => new Response(JSON.stringify(body), init);
const broken = () => new Response(new ReadableStream({ start: (body) => body.error(new TypeError("cut")) }));
const problem = (error) => ({ ...error, message: error.message, cause: error.cause?.message });
let answers = [];
"""


@pytest.fixture
def js(tmp_path: Path) -> Callable[..., Any]:
    module = shutil.copy(FILE, tmp_path / "ravi-client.mjs")

    def returned(code: str, base: str = SITE, token: str = "") -> Any:
        client = f'import {{ Client }} from "{module}"; const client = new Client("{base}", {{ token: "{token}" }});'
        program = f"{client}console.log(JSON.stringify(await (async () => {{ {code} }})()));"
        with node("--input-type=module", "-e", program) as process:
            try:
                return json.loads(process.communicate(timeout=BOUND_S)[0])
            finally:
                process.kill()  # one that hangs

    return returned


def test_node_reconnects_less_often_in_an_outage(js: Any) -> None:
    pauses = js(
        NETWORK
        + """
        globalThis.WebSocket = class {
          constructor() { setImmediate(() => {
            this.onopen();
            this.onmessage({ data: '{"type": "error", "code": "unavailable"}' });
            this.onclose({ code: 1013 });
          }); }
          close() {}
        };
        const stop = new AbortController();
        const state = () => pauses.length === 6 && stop.abort();
        for await (const _ of client.socket(() => "sessions/x/", { signal: stop.signal, state }));
        return pauses;"""
    )

    assert pauses[0] <= 500 and 5000 <= pauses[5] <= 10_000


def test_node_repeats_a_submit_with_one_key_when_the_answer_breaks_off(js: Any) -> None:
    keys, run = js(
        NETWORK
        + """answers = [broken, json({ id: "7" })];
        const run = await client.submit("react/x", "Hello.", { idempotency_key: undefined });
        return [calls.map(({ body }) => JSON.parse(body).idempotency_key), run.id];"""
    )

    assert (len(keys), len(set(keys)), bool(keys[0]), run) == (2, 1, True, "7")


def test_node_says_what_is_wrong_with_an_answer(js: Any, url: str, server: Any) -> None:
    cut = js(NETWORK + 'answers = [broken]; return client.get("runs/").catch(problem);')
    assert (cut["status"], cut["code"], cut["cause"]) == (0, "unreachable", "cut") and SITE in cut["message"]
    for path in ("admin/login/", "nothing/"):  # 200 and 404
        other = js(f'return client.get("{path}").catch(({{ code, message }}) => [code, message]);', f"{server.url}/")
        assert other[0] == "" and path in other[1] and "the URL of its mount?" in other[1]


def test_node_waits_as_long_as_the_site_asks(js: Any) -> None:
    asks = 'json({ error: { code: "throttled" } }, { status: 429, headers: { "Retry-After": "%d" } })'
    pauses, late = js(
        f"{NETWORK} answers = [{asks % 30}, json({{ id: 7 }}), {asks % 600}]; await client.submit('react/x', 'One?');"
        "return [pauses, await client.submit('react/x', 'Two?').catch(problem)];"
    )

    assert (pauses, late["status"], late["retry_after"]) == ([30_000], 429, 600)


def test_after_a_submit_an_error_in_node_names_the_run(js: Any) -> None:
    found = js(
        NETWORK
        + """const refused = json({ error: { code: "forbidden", message: "No." } }, { status: 403 });
        answers = [json({ id: "7" }), refused, json({ id: "8" }), refused];
        const ran = await client.run("react/x", "Hello.").catch(problem);
        const streamed = await client.stream("react/x", "Hello.").next().catch(problem);
        return [ran, streamed, calls.every(({ signal }) => signal instanceof AbortSignal)];"""
    )

    assert [error["run"] for error in found[:2]] + found[2:] == ["7", "8", True]


@pytest.mark.parametrize("without", ["", "delete AbortSignal.any;"])
def test_in_node_a_signal_ends_run(js: Any, url: str, key: str, paced: Any, without: str) -> None:
    code = """const stop = new AbortController();
        const state = () => stop.abort();
        const ran = client.run("react/paced", "Go.", {}, { signal: stop.signal, state });
        return ran.catch(({ status, code, run }) => [status, code, run]);"""

    assert js(without + code, url, key) == [0, "aborted", str(Run.objects.get().id)]


def test_in_node_a_blocked_run_ends_run(js: Any) -> None:
    frame = '{ seq: 1, run: "7", type: "progress", step: "error", content: { status: "blocked" } }'
    error = js(
        f"""{NETWORK} const page = {{ results: [{frame}], done: false }};
        answers = [json({{ id: "7" }}), json(page), json({{ status: "blocked", error: {{ message: "It differs." }} }})];
        return client.run("react/x", "Go.").catch(problem);"""
    )

    assert [error[name] for name in ("status", "code", "message", "run")] == [500, "blocked", "It differs.", "7"]


def test_in_node_requests_are_filtered(js: Any, url: str, key: str) -> None:
    with Client(url, key) as client:
        run = client.submit("react/payer", "Pay.")["id"]
        assert wait_until(lambda: len(client.requests()) == 2, BOUND_S)

    code = f'return [await client.requests({{ run: "{run}" }}), await client.requests({{ status: "answered" }})];'
    assert [len(rows) for rows in js(code, url, key)] == [2, 0]


def test_node_pauses_only_after_a_page_that_is_not_full(js: Any) -> None:
    found = js(
        NETWORK
        + """const frames = (from, to) => Array.from({ length: to - from }, (_, at) => ({ seq: from + at + 1 }));
        const page = (from, to, done = false) => json({ results: frames(from, to), done });
        answers = [page(0, 500), page(500, 1000), page(1000, 1001), page(1001, 1002, true)];
        let count = 0;
        for await (const _ of client.events("7")) count++;
        return [count, pauses, new Client("https://example.com/ravi", { sockets: "/live" }).sockets.href];"""
    )

    assert found == [1002, [250], "wss://example.com/live/"]


# -------------------------------------------------------------------------------------------------- what docs show


def shown(name: str, url: str, language: str = "python") -> str:
    return Page("javascript" if language == "js" else "programs").code(name, language).replace(SITE, url)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a receipt."""
    monkeypatch.chdir(tmp_path)
    Path("receipt.png").write_bytes(PNG)
    return tmp_path


def test_the_python_programs_of_the_docs(url: str, key: str, folder: Path, capsys: Any) -> None:
    for name, printed in (("ask.py", f"{LEFT}\n{LEFT}\n"), ("watch.py", LEFT), ("files.py", f"{LEFT}\n")):
        exec(compile(shown(name, url), name, "exec"), {"token": key})
        assert (name, capsys.readouterr().out) == (name, printed)
    names: dict[str, Any] = {"token": key}
    exec(compile(shown("many.py", url), "many.py", "exec"), names)
    assert asyncio.run(names["ask"](["One?", "Two?"])) == [LEFT, LEFT]
    assert PAID == [5]


def test_the_program_of_the_docs_for_node(url: str, key: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(FILE, folder / "ravi-client.mjs")
    (folder / "watch.mjs").write_text(shown("watch.mjs", url, "js"))
    monkeypatch.setenv("RAVI_TOKEN", key)

    with node("watch.mjs") as process:
        assert process.communicate(timeout=BOUND_S)[0] == f"{LEFT}{LEFT}\n"
    assert PAID == [5]


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")  # of the static files' middleware
def test_the_page_of_the_docs(url: str, server: Any, demo: Any, new_page: Callable[..., Any]) -> None:
    html = engines["django"].from_string(Page("javascript").text.split("```html\n")[1].partition("```")[0]).render()
    page = new_page(server.url, demo)
    page.context.add_cookies([{"name": "csrftoken", "value": "a" * 32, "url": server.url}])
    page.goto("/ravi/agents/")
    page.set_content(f"<!doctype html>{html}")

    page.wait_for_selector("#answer:has-text('It left.')")
    assert page.errors + page.console == []


COMPONENTS = {"agent.js": "clients", "Chat.jsx": "clients", "Ask.jsx": "javascript"}


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")  # of the static files' middleware
def test_the_components_of_the_docs_need_no_token(url: str, server: Any, demo: Any, new_page: Any) -> None:
    folder = ROOT / "tests/clients"
    blocks = {name: Page(page).code(f"src/{name}", name.partition(".")[2]) for name, page in COMPONENTS.items()}
    assert {name: (folder / "docs" / name).read_text() for name in COMPONENTS} == blocks
    if not (script := folder / "node_modules/docs.js").exists():
        missing("the bundle of the components", "make test-clients makes it")
    page = new_page(server.url, demo)
    page.context.add_cookies([{"name": "csrftoken", "value": "a" * 32, "url": server.url}])
    page.goto("/ravi/agents/")
    page.set_content('<!doctype html><main id="root"></main>')
    page.add_script_tag(path=script)

    page.get_by_label("Question").fill("Where is order 7?")
    page.get_by_text("Ask", exact=True).click()
    page.wait_for_selector("output:has-text('It left.')")
    page.get_by_label("Message").fill("What is 6 * 7?")
    page.get_by_text("Send", exact=True).click()
    page.get_by_text("6 * 7 = 42.").wait_for()

    assert page.errors + page.console == []


def test_the_proxy_of_the_docs_passes_on_all_calls_of_the_client() -> None:
    proxied = re.findall(r'"(/[^"]+)": django', Page("javascript").code("vite.config.js", "js"))

    assert proxied == ["/ravi", "/ws/ravi"] and 'sockets = "/ws/ravi/"' in FILE.read_text()
