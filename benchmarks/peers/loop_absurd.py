"""The loop as an Absurd task: a step for each model call and each tool call, as its documentation shows.

Runs in the peers' environment: python loop_absurd.py DATABASE_URL LEASE_S. A run is spawned and worked on in the same
process (`work_batch`): a worker's polling is not in its steps. It is in the wake-up and in the recovery, both by
`start_worker` with its default interval of 0.25 s.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

import timing
from absurd_sdk import Absurd, TaskContext

ABSURDCTL = Path(sys.executable).parent / "absurdctl"


def tasks(url: str, queue: str) -> Absurd:
    """A client with a connection of its own."""
    client = Absurd(url, queue_name=queue)

    @client.register_task("agent")
    def agent(params: dict, ctx: TaskContext) -> str:
        messages: list[dict] = [{"role": "user", "content": timing.QUESTION}]
        while True:
            reply = ctx.step("model", lambda: timing.call_model(messages, params["turns"]))
            messages.append(reply)
            if not reply.get("tool_calls"):
                return reply["content"]
            for call in reply["tool_calls"]:
                result = ctx.step("tool", lambda call=call: str(timing.add(**call["arguments"])))
                messages.append({"role": "tool", "call_id": call["id"], "content": result})

    @client.register_task("waiter")
    def waiter(params: dict, ctx: TaskContext) -> None:
        ctx.await_event(params["event"])
        timing.mark()

    @client.register_task("holder")
    def holder(params: dict, ctx: TaskContext) -> None:
        ctx.step("hold", timing.hold)

    return client


def main(url: str, lease_s: int) -> None:
    subprocess.run([ABSURDCTL, "init", "--database", url], check=timing.ROLE == "steady", capture_output=True)
    client, sender = tasks(url, "steps"), tasks(url, "waits")
    client.create_queue()
    sender.create_queue()
    worker = tasks(url, "waits")  # polls beside the steps, on a queue of its own
    threading.Thread(target=worker.start_worker, kwargs={"claim_timeout": lease_s}, daemon=True).start()

    def run(turns: int) -> None:
        task_id = client.spawn("agent", {"turns": turns})["task_id"]
        client.work_batch()
        done = client.fetch_task_result(task_id)
        timing.check(done.result if done else "nothing")

    def wake() -> float:
        event = f"go-{time.time_ns()}"
        sender.spawn("waiter", {"event": event})
        time.sleep(0.5)  # two polls: the worker has claimed it
        return timing.woken_by(lambda: sender.emit_event(event))

    def hold() -> float:
        sender.spawn("holder", {})
        return timing.marked()

    timing.serve(run, wake=wake, hold=hold, resumed=timing.marked)


if __name__ == "__main__":
    main(*timing.arguments())
