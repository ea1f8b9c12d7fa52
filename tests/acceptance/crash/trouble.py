"""What can happen to a site: each kind of trouble is a method, chosen at random by its weight."""

from __future__ import annotations

import time
from collections import Counter
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP

import redis

from tests.acceptance.crash.lab import Lab, Process

LEASE_S = 2.0  # of the laboratory's settings
QUEUE = "celery"
WEIGHTS = {
    "kill": 60,
    "kill_person": 15,
    "freeze": 10,
    "lose_hints": 8,
    "double_hints": 8,
    "empty_valkey": 3,
    "restart_valkey": 2,
    "crash_valkey": 2,
    "restart_postgres": 2,
    "crash_postgres": 2,
}


class Trouble:
    """`stir` makes some when its time has come; `calm` lets everything go on."""

    def __init__(self, lab: Lab, random: Random, *, every_s: float) -> None:
        self.lab = lab
        self.made: Counter[str] = Counter()
        self._random = random
        self._every_s = every_s
        self._next = time.monotonic()
        self._frozen: list[tuple[float, Process]] = []  # until when

    def stir(self) -> None:
        self.thaw()
        now = time.monotonic()
        if now >= self._next:
            kind = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self.made[kind] += 1
            getattr(self, kind)()
            self._next = time.monotonic() + self._random.expovariate(1 / self._every_s)

    def thaw(self) -> None:
        """Let those go on who have slept long enough."""
        now = time.monotonic()
        for until, worker in list(self._frozen):
            if now >= until:
                self._frozen.remove((until, worker))
                self.lab.signal(worker, SIGCONT)

    def calm(self) -> None:
        for _, worker in self._frozen:
            self.lab.signal(worker, SIGCONT)
        self._frozen.clear()

    # ------------------------------------------------------------------------------------------------- workers

    def kill(self) -> None:
        if awake := self.lab.awake():
            self.lab.signal(self._random.choice(awake), SIGKILL)

    def kill_person(self) -> None:
        """Perhaps between an answer's commit and the wake-up that follows it."""
        if persons := [person for person in self.lab.persons if person.running]:
            self.lab.signal(self._random.choice(persons), SIGKILL)

    def freeze(self) -> None:
        """A worker that sleeps past its leases, and then goes on as if nothing had been."""
        if len(awake := self.lab.awake()) > 1:
            worker = self._random.choice(awake)
            self.lab.signal(worker, SIGSTOP)
            self._frozen.append((time.monotonic() + self._random.uniform(0.5, 2.5) * LEASE_S, worker))

    # -------------------------------------------------------------------------------------------------- broker

    def lose_hints(self) -> None:
        """Take messages off the queue for a moment, before a worker does."""
        self._steal(self._random.uniform(0.1, 0.5), times=0)

    def double_hints(self) -> None:
        self._steal(self._random.uniform(0.1, 0.5), times=2)

    def _steal(self, seconds: float, times: int) -> None:
        give_up = time.monotonic() + seconds
        with redis.Redis.from_url(self.lab.valkey.url) as valkey:
            while (left := give_up - time.monotonic()) > 0:
                if found := valkey.blpop([QUEUE], timeout=max(left, 0.01)):
                    for _ in range(times):
                        valkey.rpush(QUEUE, found[1])
                    if times:
                        return

    def empty_valkey(self) -> None:
        with redis.Redis.from_url(self.lab.valkey.url) as valkey:
            valkey.flushall()

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
