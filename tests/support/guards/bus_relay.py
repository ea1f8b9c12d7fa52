"""The event bus where something is wrong: what is refused, slow, too much or dead costs nobody else an event."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

BUS_FILES = RUNTIME + "bus/"
REFUSED = (UNIT + "test_relay_refused.py",)
VALKEY = (UNIT + "test_bus_valkey.py",)
MEMORY = (UNIT + "test_bus_memory.py",)

BUS_RELAY = [
    Mutant(
        "relay: one that is refused holds up no other",
        BUS_FILES + "valkey.py",
        "        return list(pipe.execute(raise_on_error=False))\n",
        "        return list(pipe.execute())\n",
        REFUSED,
    ),
    Mutant(
        "relay: what is refused stays",
        BUS_FILES + "relay.py",
        "        kept = {given[place][0].pk for place in {*came.refused, *came.left}}\n",
        "        kept = {given[place][0].pk for place in came.left}\n",
        REFUSED,
    ),
    Mutant(
        "relay: what is left stays",
        BUS_FILES + "relay.py",
        "        kept = {given[place][0].pk for place in {*came.refused, *came.left}}\n",
        "        kept = {given[place][0].pk for place in came.refused}\n",
        REFUSED,
    ),
    Mutant(
        "relay: what is refused is counted",
        STORE + "outbox_rows.py",
        "    tries = min(row.tries + 1, 1000)\n",
        "    tries = row.tries\n",
        REFUSED,
    ),
    Mutant(
        "relay: a server that takes nothing is no event's fault",
        BUS_FILES + "valkey.py",
        "    away = {place: error for place, error in wrong.items() if _is_of_the_server(error)}\n",
        "    away: dict[int, Exception] = {}\n",
        REFUSED,
    ),
    Mutant(
        "relay: whom the server hangs up on",
        BUS_FILES + "valkey.py",
        "            return _came_of([self._send_alone(topic, event) for topic, event in events])\n",
        "            raise\n",
        REFUSED,
    ),
    Mutant(
        "relay: a batch has so many bytes",
        STORE + "outbox_rows.py",
        "        if ids and total > most:\n",
        "        if False:\n",
        REFUSED,
    ),
    Mutant(
        "relay: one event always goes",
        STORE + "outbox_rows.py",
        "        if ids and total > most:\n",
        "        if total > most:\n",
        REFUSED,
    ),
    Mutant(
        "bus: a group's consumer says that it lives",
        BUS_FILES + "member.py",
        "            await self._client.xclaim(self._key, self._group, self._name, 0, sorted(own), justid=True)\n",
        "            pass\n",
        VALKEY,
    ),
    Mutant(
        "bus: what is another's is not taken back",
        BUS_FILES + "member.py",
        '        own = held & {row["message_id"] for row in mine}\n',
        "        own = held if mine else set()\n",
        VALKEY,
    ),
    Mutant(
        "bus: what the dead have left is taken one at a time",
        BUS_FILES + "member.py",
        "start_id=start, count=1\n",
        "start_id=start, count=50\n",
        VALKEY,
    ),
    Mutant(
        "bus: a slow subscription keeps back the outbox in memory",
        BUS_FILES + "memory.py",
        "                if topic in full:\n",
        "                if False:\n",
        MEMORY,
    ),
    Mutant(
        "bus: room again in memory is hinted",
        BUS_FILES + "memory.py",
        "            self._keeps_back = False\n            courier.hint()\n",
        "            self._keeps_back = False\n",
        MEMORY,
    ),
    Mutant(
        "bus: a backlog in memory is bounded",
        BUS_FILES + "memory.py",
        "        if len(self.due) > KEPT:\n",
        "        if False:\n",
        MEMORY,
    ),
    Mutant(
        "courier: a fork's locks are new",
        BUS_FILES + "courier.py",
        "    _thread, _lock, _wake = None, threading.Lock(), threading.Event()\n",
        "    _thread, _lock = None, threading.Lock()\n",
        REFUSED,
    ),
    Mutant(
        "relay: a fork's lock is new",
        BUS_FILES + "relay.py",
        "    _one_here, _rests_until = threading.Lock(), 0.0\n",
        "    _rests_until = 0.0\n",
        REFUSED,
    ),
]
