"""The loop as a DBOS workflow: a step for each model call and each tool call, as its documentation shows.

Runs in the peers' environment: python loop_dbos.py DATABASE_URL LEASE_S. DBOS has no lease: a process that starts with
the same executor id recovers the pending workflows of the one before it.
"""

import threading

import timing
from dbos import DBOS, DBOSConfig

waits = threading.Event()


@DBOS.step()
def call_model(messages: list, turns: int) -> dict:
    return timing.call_model(messages, turns)


@DBOS.step()
def call_tool(call: dict) -> str:
    return str(timing.add(**call["arguments"]))


@DBOS.workflow()
def agent(turns: int) -> str:
    messages: list[dict] = [{"role": "user", "content": timing.QUESTION}]
    while True:
        reply = call_model(messages, turns)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return reply["content"]
        for call in reply["tool_calls"]:
            messages.append({"role": "tool", "call_id": call["id"], "content": call_tool(call)})


@DBOS.workflow()
def waiter() -> None:
    waits.set()
    DBOS.recv("go")
    timing.mark()


@DBOS.step()
def hold() -> None:
    timing.hold()


@DBOS.workflow()
def holder() -> None:
    hold()


def wake() -> float:
    waits.clear()
    handle = DBOS.start_workflow(waiter)
    waits.wait()
    return timing.woken_by(lambda: DBOS.send(handle.workflow_id, "now", "go"))


def begin_to_hold() -> float:
    DBOS.start_workflow(holder)
    return timing.marked()


def launch(url: str) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "application_version": "bench",
        "run_admin_server": False,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()


def main(url: str, lease_s: int) -> None:
    launch(url)
    timing.serve(lambda turns: timing.check(agent(turns)), wake=wake, hold=begin_to_hold, resumed=timing.marked)
    DBOS.destroy()


if __name__ == "__main__":
    main(*timing.arguments())
