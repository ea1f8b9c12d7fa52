"""Processes of Python for tests, forked from a server that has imported Django, Celery and litellm once.

`run` and `Popen` are those of `subprocess`, except for two things: `argv` has the arguments of `python`
(`["manage.py", "check"]`, `["-m", "celery", …]`, `["-c", code]`), and a process is the leader of a session, which is
killed when the test process dies.

The first test process that needs the server starts it. It listens at the path RAVI_TEST_FORKS; test processes with the
same value share one server. Without that variable a test process has a server of its own. The server ends with its last
client. It has read no settings, opens no connection and starts no thread. Needs Linux.

A client connects once for each process. It sends `{"argv", "env", "cwd"}` with three file descriptors, and receives
`{"pid"}` and, once the process has ended, `{"status"}`. The process is a zombie until the client has closed the
connection, so its pid stays its own. One more connection, without a request, keeps the server alive.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
MESSAGE_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_PATH = sys.path[1:]  # without the entry of the command
# Environment variables that configure Python itself. The others come with each request.
KEPT = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "TMPDIR")
MADE = ("TIKTOKEN_CACHE_DIR",)  # litellm's import sets it, for later imports
# Slow imports that need no settings of Django. litellm's first call imports the second part.
WARM = (
    "celery.app.base", "celery.apps.beat", "celery.apps.worker", "celery.bin.celery", "celery.concurrency.prefork",
    "celery.concurrency.thread", "celery.fixups.django", "celery.worker.consumer", "channels.layers",
    "channels_redis.pubsub", "django.contrib.admin.filters", "django.core.handlers.asgi", "django.core.management",
    "django.core.serializers.json", "django.db.backends.postgresql.base", "django.db.backends.sqlite3.base",
    "django.db.migrations.executor", "django.db.models", "django.test.client", "httpx", "jsonschema",
    "kombu.transport.redis", "litellm", "psycopg.types.json", "pydantic", "redis.asyncio", "rest_framework.compat",
    "uvicorn.main",
    "anyio._backends._asyncio", "litellm._service_logger", "litellm.litellm_core_utils.default_encoding",
    "litellm.llms.edenai.chat.transformation", "litellm.llms.fal_ai.chat.transformation",
    "litellm.llms.litellm_proxy.chat.transformation", "litellm.proxy.openai_files_endpoints.common_utils",
    "litellm.llms.vertex_ai.vertex_ai_partner_models.anthropic.transformation", "openai.resources.beta.assistants",
)  # fmt: skip
WARM_PACKAGES = tuple(f"ravi_django.{name}" for name in ("agents", "calls.llm", "calls.net", "kernel"))


# ------------------------------------------------------------------------------------------------------ the client


class Forks:
    """A fork server, started when nobody listens at `path`: `start` runs `serve(path)` with the socket as its stdin."""

    def __init__(self, path: Path, start: Callable[[Path, socket.socket], object]) -> None:
        self.path, self._start = path, start
        self._stay = self.connect()

    def connect(self) -> socket.socket:
        client = _socket()
        with _locked(self.path) as address:
            try:
                client.connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                self.path.unlink(missing_ok=True)
                with _socket() as listener:
                    listener.bind(address)
                    listener.listen(128)
                    client.connect(address)
                    self._start(self.path, listener)
        return client

    def close(self) -> None:
        self._stay.close()


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` for `python *argv`; without `preexec_fn` and `executable`."""

    def __init__(self, argv: Sequence[str | Path], *, cwd: Path = ROOT, forks: Forks | None = None, **options: Any):
        self._forks = forks or _forks()
        super().__init__([str(part) for part in argv], cwd=cwd, **options)

    def _execute_child(self, argv, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags,
                       shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *unused):  # type: ignore  # fmt: skip
        """Replaces the fork and exec of `subprocess`."""
        request = {"argv": argv, "env": dict(os.environ if env is None else env), "cwd": str(cwd)}
        handles = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self._connection = self._forks.connect()
        try:
            socket.send_fds(self._connection, [json.dumps(request).encode()], handles)
            if "pid" not in (received := self._receive()):
                log = _log(self._forks.path)
                raise RuntimeError(f"The fork server has ended.\n{log.read_text() if log.exists() else ''}")
            self.pid, self._child_created = received["pid"], True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _receive(self) -> dict[str, int]:
        """Nothing once the server has ended."""
        try:
            received: dict[str, int] = json.loads(self._connection.recv(MESSAGE_BYTES) or "{}")
        except ConnectionResetError:
            return {}
        return received

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:
            if self.returncode is None:
                self._connection.settimeout(timeout)
                try:
                    self.returncode = self._receive().get("status", -signal.SIGKILL)
                except (BlockingIOError, TimeoutError):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
                self._connection.close()
        return self.returncode

    def _internal_poll(self, _deadstate: Any = None) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._wait(0)
        return None


def run(
    argv: Sequence[str | Path],
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with Popen(argv, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def start() -> None:
    """Start the server before it is needed, without waiting for its imports."""
    _forks()


@functools.cache
def _forks() -> Forks:
    path = os.environ.get("RAVI_TEST_FORKS")
    if not path:
        folder = tempfile.mkdtemp(prefix="ravi-forks-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = f"{folder}/socket"
    forks = Forks(Path(path), _start)
    atexit.register(forks.close)
    return forks


def _start(path: Path, listener: socket.socket) -> None:
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    with _log(path).open("wb") as log:
        command = [sys.executable, "-m", "tests.support.forks", str(path)]
        subprocess.run(command, cwd=ROOT, env=env, stdin=listener, stdout=log, stderr=log, check=True)


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}.log")


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextmanager
def _locked(path: Path) -> Iterator[str]:
    """Lock out other clients, a second start and the server's end. Yields an address of at most 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


# ------------------------------------------------------------------------------------------------------ the server


@dataclass(slots=True)
class Forked:
    pid: int
    end: int | None  # a file descriptor that is readable once the process has ended; None when that was reported


def main() -> None:
    if os.fork():
        os._exit(0)  # the process that starts the server waits for this one
    os.setsid()
    import_libraries()
    for name in WARM_PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    serve(Path(sys.argv[1]))


def import_libraries() -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import fetches a price list over the network
    for name in WARM:
        with suppress(ImportError):  # other versions have other modules
            importlib.import_module(name)


def serve(path: Path) -> None:
    """Fork for each request to the socket that is stdin, until the last client has gone. From the main thread."""
    listener = socket.socket(fileno=os.dup(0))
    assert len(os.listdir("/proc/self/task")) == 1, "a module has started a thread"
    gc.collect()
    gc.freeze()
    clients: dict[socket.socket, Forked | None] = {listener.accept()[0]: None}
    while clients or not _closed(path, listener):
        ends = {forked.end: client for client, forked in clients.items() if forked and forked.end is not None}
        for ready in select.select([listener, *clients, *ends], [], [])[0]:
            if ready is listener:
                clients[listener.accept()[0]] = None
            elif ready in ends:
                _report(ends[ready], clients[ends[ready]])
            elif clients[ready] or not _fork(ready, clients, listener):
                _drop(ready, clients.pop(ready))
                break  # the rest of what was ready may be of that client


def _closed(path: Path, listener: socket.socket) -> bool:
    with suppress(FileNotFoundError), _locked(path):
        if select.select([listener], [], [], 0)[0]:
            return False  # a client came in this moment
        path.unlink()
        listener.close()
    return True


def _fork(client: socket.socket, clients: dict[socket.socket, Forked | None], listener: socket.socket) -> bool:
    """False when the client has gone instead of asking."""
    try:
        message, handles, _, _ = socket.recv_fds(client, MESSAGE_BYTES, 3)
    except ConnectionResetError:
        return False
    if not message:
        return False
    server, pid = os.getpid(), os.fork()
    if pid == 0:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            os._exit(1)
        listener.close()
        for other, forked in clients.items():
            other.close()
            if forked and forked.end is not None:
                os.close(forked.end)
        _become(json.loads(message), handles)
    for handle in handles:
        os.close(handle)
    clients[client] = Forked(pid, os.pidfd_open(pid))
    _send(client, pid=pid)
    return True


def _report(client: socket.socket, forked: Forked) -> None:
    assert forked.end is not None
    os.close(forked.end)
    forked.end = None
    end = os.waitid(os.P_PID, forked.pid, os.WEXITED | os.WNOWAIT)
    assert end
    _send(client, status=end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)


def _drop(client: socket.socket, forked: Forked | None) -> None:
    client.close()
    if forked is None:
        return
    if forked.end is not None:
        os.kill(forked.pid, signal.SIGKILL)  # it may not lead a session yet
        with suppress(ProcessLookupError):
            os.killpg(forked.pid, signal.SIGKILL)
        os.close(forked.end)
    os.waitpid(forked.pid, 0)


def _send(client: socket.socket, **message: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it is dropped next
        client.send(json.dumps(message).encode())


# ----------------------------------------------------------------------------------------------- the forked process


def _become(request: dict[str, Any], handles: list[int]) -> NoReturn:
    """Do what `python *argv` does, from start to end."""
    code = 1
    try:
        os.setsid()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(request["cwd"])
        made = {name: os.environ[name] for name in MADE if name in os.environ}
        os.environ.clear()
        os.environ.update(made | request["env"])
        time.tzset()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
        unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1 if unbuffered else -1, closefd=False)
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        if {"COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"} & set(os.environ):
            importlib.import_module("coverage").process_startup()
        code = _run(request["argv"])
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def _run(argv: list[str]) -> int:
    """Returns the exit status."""
    try:
        _run_main(argv)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    else:
        return 0
    return 1


def _run_main(argv: list[str]) -> None:
    first, *rest = argv
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    folder = {"-m": os.getcwd(), "-c": ""}.get(first, os.path.dirname(os.path.realpath(first)))
    sys.path[:] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *_PATH]
    importlib.invalidate_caches()
    if first == "-m":
        sys.argv = rest
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif first == "-c":
        sys.argv = [first, *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = argv
        main.__file__ = first
        exec(compile(Path(first).read_bytes(), first, "exec"), main.__dict__)


if __name__ == "__main__":
    main()
