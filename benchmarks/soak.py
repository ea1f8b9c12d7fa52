"""Sockets of many users over minutes, while sockets break, workers are killed and Valkey restarts.

    python -m benchmarks.soak [--seconds 600] [--users 50] [--sockets 4] [--no-faults]

Each user has a run that streams a text, and sockets that follow it, one run after the other. Every socket must end
with the run's own text, and with seqs that rise without gaps. Exits 1 if one does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

import psutil

from benchmarks.stack import Stack, running, servers, set_up_site, web, worker
from project.demo_check import health
from project.process import Child, ProcessError, wait_until

AGENT = "react/storyteller"
BREAK_S = 20.0  # mean time until a socket breaks
FAULT_S = 40.0  # between two faults: a run that loses two workers in a row waits until it may be driven alone
END_S = 120.0  # for the last runs to end


@dataclass
class Tally:
    delays: list[float] = field(default_factory=list)  # ms from the frame's making to the client
    frames: int = 0
    broken: Counter[str] = field(default_factory=Counter)  # sockets, by the error
    gaps: int = 0  # `stream.gap`: the buffer was lost
    corrected: Counter[str] = field(default_factory=Counter)  # texts whose deltas end early: their worker was killed
    runs: int = 0
    wrong: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # did not end in time: the machine was too slow, or a socket hangs


class Follower:
    """One socket's view of a run."""

    def __init__(self, run: str, tally: Tally) -> None:
        self.run, self.tally = run, tally
        self.seq, self.done = 0, False
        self.calls: dict[str, tuple[str, str]] = {}  # by call: attempt and text

    def take(self, frame: dict[str, Any]) -> None:
        seq, first = frame.get("seq") or 0, frame.get("from_seq") or frame.get("seq") or 0
        if frame["type"] == "stream.gap":
            self.tally.gaps += 1
            for kept in (frame.get("snapshot") or {}).get("frames", ()):
                self._text(kept, again=True)
        elif first > self.seq + 1:
            self.tally.wrong.append(f"run {self.run}: seq {first} follows {self.seq}")
        self._text(frame, again=first <= self.seq)
        self.seq, self.done = max(seq, self.seq), frame["type"] == "stream.done"
        self.tally.frames += 1
        if frame["type"] == "text.delta" and "from_seq" not in frame:
            self.tally.delays.append((time.time() - datetime.fromisoformat(frame["ts"]).timestamp()) * 1000)

    def _text(self, frame: dict[str, Any], *, again: bool) -> None:
        if frame["type"] == "text.delta":
            attempt, text = self.calls.get(frame["call"], (frame["attempt"], ""))
            old = "" if again or attempt != frame["attempt"] else text
            self.calls[frame["call"]] = (frame["attempt"], old + frame["text"])
        elif frame["type"] == "completion":
            texts = [block["text"] for block in frame.get("content") or () if block["type"] == "text"]
            said = self.calls.get(frame["call"], ("", ""))[1]
            if texts and said and said != "".join(texts):
                self.tally.corrected[f"run {self.run}: {len(said)} characters were streamed of {len(texts[0])}"] += 1
            if texts:
                self.calls[frame["call"]] = ("", "".join(texts))

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.calls.values())

    async def follow(self, address: str, cookie: str, breaks: bool) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        while not self.done:
            url = f"ws://{address}/ws/ravi/runs/{self.run}/?after={self.seq}"
            until = random.expovariate(1 / BREAK_S) if breaks else None
            try:
                async with (
                    asyncio.timeout(until),
                    connect(
                        url, origin=f"http://{address}", additional_headers={"Cookie": cookie}, proxy=None
                    ) as socket,
                ):
                    async for message in socket:
                        self.take(json.loads(message))
            except (TimeoutError, OSError, WebSocketException) as error:
                if getattr(getattr(error, "rcvd", None), "code", 0) >= 4400:
                    raise
                self.tally.broken[f"{type(error).__name__} {error}"[:80]] += 1
                await asyncio.sleep(0.2)


async def watch(user: Any, cookie: str, address: str, options: argparse.Namespace, end: float, tally: Tally) -> None:
    from asgiref.sync import sync_to_async

    from ravi_django import submit
    from ravi_django.models import Run

    while time.monotonic() < end:
        run = await sync_to_async(submit)(AGENT, "Tell me the story", user=user)
        followers = [Follower(str(run.id), tally) for _ in range(options.sockets)]
        following = asyncio.gather(*(one.follow(address, cookie, options.faults) for one in followers))
        try:
            await asyncio.wait_for(following, end + END_S - time.monotonic())
        except TimeoutError:
            await run.arefresh_from_db()
            seqs = [(one.seq, one.done) for one in followers]
            tally.late.append(f"run {run.id}: is {run.status}, and its sockets are at {seqs}")
            return
        output = (await Run.objects.aget(id=run.id)).output
        tally.runs += 1
        tally.wrong += [f"run {run.id}: ends with {one.text[-40:]!r}" for one in followers if one.text != output]


async def faults(stack: Stack, workers: list[Child], valkey: Any, end: float) -> int:
    """Kill a worker, or restart Valkey, in turn."""
    done = 0
    while time.monotonic() + FAULT_S < end:
        await asyncio.sleep(FAULT_S)
        if done % 3 == 2:
            await asyncio.to_thread(valkey.restart)
        else:
            one = workers[done % len(workers)]
            await asyncio.to_thread(one.kill)
            await asyncio.to_thread(one.start)
        done += 1
    return done


def memory() -> float:
    """Megabytes of our child processes but the servers."""
    family = psutil.Process().children(recursive=True)
    return sum(one.memory_info().rss for one in family if "python" in one.name()) / 1e6


def web_process() -> str:
    """Memory, file descriptors, threads and CPU of the web process."""
    family = psutil.Process().children(recursive=True)
    one = next(one for one in family if "uvicorn" in one.cmdline())
    times = one.cpu_times()
    what = f"{one.num_fds()} file descriptors, {one.num_threads()} threads, {times.user + times.system:.0f} s of CPU"
    return f"{one.memory_info().rss / 1e6:.0f} MB, {what}"


async def soak(stack: Stack, valkey: Any, address: str, workers: list[Child], options: argparse.Namespace) -> Tally:
    from asgiref.sync import sync_to_async

    cookies = await sync_to_async(log_in)(options.users)
    tally, begun, cpu = Tally(), time.monotonic(), psutil.Process().cpu_times()
    end = begun + options.seconds
    jobs = [asyncio.create_task(watch(user, cookie, address, options, end, tally)) for user, cookie in cookies]
    chaos = asyncio.create_task(faults(stack, workers, valkey, end)) if options.faults else None
    await asyncio.sleep(min(30, options.seconds / 4))
    early, web_early = memory(), web_process()
    await asyncio.gather(*jobs)
    took, used = time.monotonic() - begun, psutil.Process().cpu_times()
    delays = sorted(tally.delays) or [0]
    print(f"sockets {options.users * options.sockets}, {took:.0f} s, load {os.getloadavg()[0]:.1f}")
    happened = await chaos if chaos else 0
    print(f"runs {tally.runs}, broken sockets {tally.broken.total()}, faults {happened}, gaps {tally.gaps}")
    print(*(f"  {count} {error}" for error, count in tally.broken.most_common(5)), sep="\n")
    print(*(f"  {count} sockets of {text}" for text, count in tally.corrected.items()), sep="\n")
    print(f"frame to client p50 {median(delays):.0f} ms, p95 {delays[int(len(delays) * 0.95)]:.0f} ms")
    share = (used.user - cpu.user + used.system - cpu.system) / took
    print(f"deliveries {tally.frames / took:.0f}/s, the client's CPU {share:.0%}")
    print(f"memory {early:.0f} MB early, {memory():.0f} MB at the end")
    print(f"web process early: {web_early}; at the end: {web_process()}")
    print(*tally.late[:10], *tally.wrong[:10], f"late: {len(tally.late)}, wrong: {len(tally.wrong)}", sep="\n")
    return tally


def log_in(count: int) -> list[tuple[Any, str]]:
    from django.contrib.auth import get_user_model
    from django.test import Client

    found = []
    for number in range(count):
        user = get_user_model().objects.get_or_create(username=f"soak-{number}")[0]
        client = Client()
        client.force_login(user)
        found.append((user, f"sessionid={client.cookies['sessionid'].value}"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--sockets", type=int, default=4, help="of each user")
    parser.add_argument("--no-faults", dest="faults", action="store_false")
    options = parser.parse_args()
    os.environ["DEMO_WORKER"] = "soak"  # leases of 8 s
    with servers() as stack:
        set_up_site()
        schedule = ("beat", "--schedule", str(stack.folder / "beat"), "--pidfile=")
        beat = stack.child("beat", "-m", "celery", "-A", "project", *schedule)
        with web(stack) as address, worker(stack, "worker-1") as one, worker(stack, "worker-2") as two, running(beat):
            if not wait_until(lambda: health(f"http://{address}"), 90, poll=0.5):
                raise ProcessError("the site is not healthy")
            tally = asyncio.run(soak(stack, stack.valkey, address, [one, two], options))
    is_whole = not tally.corrected or options.faults
    return 0 if is_whole and tally.runs and not tally.wrong and not tally.late else 1


if __name__ == "__main__":
    sys.exit(main())
