"""What can happen to a site: each kind of trouble is a method, chosen at random by its weight."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP
from threading import Thread

import psycopg
import redis

from tests.acceptance.crash import rig
from tests.acceptance.crash.lab import Lab

LEASE_S = 2.0  # of the laboratory's settings
QUEUE = "ravi"
STREAMS = "ravi:{*}:[msk]"  # the three keys of each tree's stream
READ_ONLY, DISK_FULL = "25006", "53100"  # SQLSTATEs
TABLES = ("ravi_run", "ravi_journalentry", "ravi_signal", "ravi_session", "ravi_humanrequest")
WEIGHTS = {
    "kill": 45,
    "kill_person": 12,
    "freeze": 8,
    "lose_hints": 6,
    "double_hints": 6,
    "empty_valkey": 3,
    "restart_valkey": 2,
    "crash_valkey": 2,
    "demote_valkey": 3,
    "fill_valkey": 3,
    "roll_back_valkey": 3,
    "evict_key": 5,
    "restart_postgres": 2,
    "crash_postgres": 2,
    "lose_postgres": 2,
    "terminate_backend": 24,
    "stall_network": 6,
    "cut_network": 4,
    "slow_commits": 4,
    "refuse_writes": 3,
    "read_only_default": 2,
    "fill_disk": 3,
    "take_connections": 3,
    "lock_table": 5,
}


class Trouble:
    """`stir` makes some when its time has come, up to `limit` times; `calm` lets everything go on."""

    def __init__(
        self,
        lab: Lab,
        random: Random,
        *,
        every_s: float,
        weights: Mapping[str, int] = WEIGHTS,
        limit: int | None = None,
    ) -> None:
        self.lab = lab
        self.made: Counter[str] = Counter()
        self._random = random
        self._every_s = every_s
        self._weights = weights
        self._limit = limit
        self._next = time.monotonic()
        self._ends: list[tuple[float, Callable[[], object]]] = []  # of troubles that last: when, and what ends them
        self._threads: list[Thread] = []

    @property
    def total(self) -> int:
        return self.made.total()

    def stir(self) -> None:
        self.end()
        if time.monotonic() >= self._next and (self._limit is None or self.total < self._limit):
            kind = self._random.choices(list(self._weights), list(self._weights.values()))[0]
            self.made[kind] += getattr(self, kind)() is not False
            self._next = time.monotonic() + self._random.expovariate(1 / self._every_s)

    def end(self) -> None:
        """End what has lasted long enough."""
        now = time.monotonic()
        for due in [each for each in self._ends if now >= each[0]]:
            self._ends.remove(due)
            due[1]()

    def calm(self) -> None:
        while self._ends:
            self._ends.pop()[1]()
        for thread in self._threads:
            thread.join()

    def _lasts(self, seconds: float, end: Callable[[], object]) -> None:
        self._ends.append((time.monotonic() + seconds, end))

    def _spell(self) -> float:
        """Seconds."""
        return self._random.uniform(0.25, 1.0) * LEASE_S

    # ------------------------------------------------------------------------------------------------- workers

    def kill(self) -> bool:
        if awake := self.lab.awake():
            self.lab.signal(self._random.choice(awake), SIGKILL)
        return bool(awake)

    def kill_person(self) -> bool:
        """Perhaps between an answer's commit and the wake-up that follows it."""
        if persons := [person for person in self.lab.persons if person.running]:
            self.lab.signal(self._random.choice(persons), SIGKILL)
        return bool(persons)

    def freeze(self) -> bool:
        """A worker that sleeps past its leases, and then goes on as if nothing had been."""
        if len(awake := self.lab.awake()) < 2:
            return False
        worker = self._random.choice(awake)
        self.lab.signal(worker, SIGSTOP)
        self._lasts(self._random.uniform(0.5, 2.5) * LEASE_S, partial(self.lab.signal, worker, SIGCONT))
        return True

    # -------------------------------------------------------------------------------------------------- broker

    def lose_hints(self) -> bool:
        """Take messages off the queue for a moment, before a worker does."""
        return self._valkey(partial(self._steal, self._random.uniform(0.1, 0.5), times=0))

    def double_hints(self) -> bool:
        return self._valkey(partial(self._steal, self._random.uniform(0.1, 0.5), times=2))

    def _steal(self, seconds: float, valkey: redis.Redis, *, times: int) -> None:
        give_up = time.monotonic() + seconds
        while (left := give_up - time.monotonic()) > 0:
            if found := valkey.blpop([QUEUE], timeout=max(left, 0.01)):
                for _ in range(times):
                    valkey.rpush(QUEUE, found[1])
                if times:
                    return

    def empty_valkey(self) -> bool:
        return self._valkey(lambda valkey: valkey.flushall())

    def demote_valkey(self) -> bool:
        """A replica whose primary is away: it reads, and answers READONLY to writes."""
        self._lasts(self._spell(), partial(self._valkey, lambda valkey: valkey.replicaof("NO", "ONE")))
        return self._valkey(lambda valkey: valkey.replicaof("127.0.0.1", "1"))

    def fill_valkey(self) -> bool:
        """It answers OOM to writes."""
        self._lasts(self._spell(), partial(self._valkey, lambda valkey: valkey.config_set("maxmemory", 0)))
        return self._valkey(lambda valkey: valkey.config_set("maxmemory", 1))

    def roll_back_valkey(self) -> None:
        """A replica takes over that is late: it has one tree's stream as it is now."""
        self._valkey(self._dump)

    def _dump(self, valkey: redis.Redis) -> None:
        streams = sorted({key[:-1] for key in valkey.keys(STREAMS)})
        tree = self._random.choice(streams or [b""])
        dumped = {key: value for name in b"msk" if (value := valkey.dump(key := tree + bytes([name])))}
        self._lasts(self._spell(), partial(self._restart_with, dumped))

    def _restart_with(self, dumped: Mapping[bytes, bytes]) -> None:
        self.lab.valkey.restart()
        self._valkey(lambda valkey: [valkey.restore(key, 3_600_000, value) for key, value in dumped.items()])

    def evict_key(self) -> bool:
        """A full server deletes one, where its policy is not `noeviction`."""
        return self._valkey(lambda valkey: [valkey.delete(key) for key in self._one_of(valkey.keys(STREAMS))])

    def _one_of(self, keys: list[bytes]) -> list[bytes]:
        return [self._random.choice(sorted(keys))] if keys else []

    def _valkey(self, do: Callable[[redis.Redis], object]) -> bool:
        """False when it refuses."""
        with redis.Redis.from_url(self.lab.valkey.url) as valkey:
            try:
                do(valkey)
            except redis.ResponseError:
                return False
        return True

    def restart_valkey(self) -> None:
        self.lab.valkey.restart()

    def crash_valkey(self) -> None:
        self.lab.valkey.kill()
        self.lab.valkey.start()

    # ------------------------------------------------------------------------------------------------ database

    def restart_postgres(self) -> None:
        """A fast shutdown: every connection is ended, transactions are rolled back."""
        self.lab.postgres.restart()

    def crash_postgres(self) -> None:
        """An immediate one: recovery from the log follows."""
        self.lab.postgres.crash()
        self.lab.postgres.start()

    def lose_postgres(self) -> None:
        """Nobody can connect for half a lease."""
        self.lab.postgres.stop()
        back = time.monotonic() + LEASE_S / 2
        while time.monotonic() < back:
            time.sleep(0.02)
        self.lab.postgres.start()

    def terminate_backend(self) -> bool:
        """Of a worker; half of the time one that is at its commit, if there is one (slow commits wait in PgSleep)."""
        order = "coalesce(wait_event = 'PgSleep', false) DESC, random()" if self._random.random() < 0.5 else "random()"
        return bool(
            self.lab.query(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
                f"WHERE usename = %s AND application_name ~ '^w[0-9]' ORDER BY {order} LIMIT 1) AS one",
                rig.SITE,
            )
        )

    def slow_commits(self) -> None:
        self.fault("slow", self._spell(), self._random.uniform(0.001, 0.005))

    def refuse_writes(self) -> None:
        """As a standby does after a failover."""
        self.fault(READ_ONLY, self._spell())

    def fill_disk(self) -> None:
        self.fault(DISK_FULL, self._spell())

    def fault(self, name: str, seconds: float, delay_s: float = 0.0) -> None:
        """See `rig.FAULTS`."""
        self.lab.query(
            "INSERT INTO lab_fault VALUES (%s, clock_timestamp() + least(%s, 1e6) * interval '1 s', %s) "
            "ON CONFLICT (name) DO UPDATE SET until = EXCLUDED.until, delay_s = EXCLUDED.delay_s",
            *(name, seconds, delay_s),
        )

    def read_only_default(self) -> None:
        """The site's own statements are refused; our own transactions begin READ WRITE."""
        self._default_read_only("on")
        self._lasts(self._spell(), partial(self._default_read_only, "off"))

    def _default_read_only(self, value: str) -> None:
        self.lab.query(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        self.lab.query("SELECT pg_reload_conf()")

    def take_connections(self) -> None:
        """All of them, while the site's are cut."""
        self._limit_connections(0)
        self.lab.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", rig.SITE)
        self._lasts(self._spell(), partial(self._limit_connections, -1))

    def _limit_connections(self, limit: int) -> None:
        self.lab.query(f"ALTER ROLE {rig.SITE} CONNECTION LIMIT {limit}")

    def lock_table(self) -> None:
        """As a migration does; given up when the table is in use for too long."""
        locks = Thread(target=self._lock, args=(self._random.choice(TABLES), self._spell()))
        locks.start()
        self._threads.append(locks)

    def _lock(self, table: str, seconds: float) -> None:
        try:
            with psycopg.connect(self.lab.postgres.url) as connection:
                connection.execute("SET lock_timeout = '1s'")
                connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
                connection.execute("SELECT pg_sleep(%s)", [seconds])
        except psycopg.Error:  # the server is stopped, or the table is in use
            pass

    # ------------------------------------------------------------------------------------------------- network

    def stall_network(self) -> None:
        """Of every other worker: what they and PostgreSQL send arrives late."""
        self._random.choice(self.lab.proxies).stall(self._random.uniform(0.5, 3.0) * LEASE_S)

    def cut_network(self) -> None:
        self._random.choice(self.lab.proxies).cut()
