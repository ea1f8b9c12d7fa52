"""The loop as a DBOS workflow: a step for each model call and each tool call, as its documentation shows.

Runs in the peers' environment: python loop_dbos.py DATABASE_URL TURNS:REPETITIONS…
"""

import timing
from dbos import DBOS, DBOSConfig


@DBOS.step()
def call_model(messages: list, turns: int) -> dict:
    done = sum(message["role"] == "assistant" for message in messages)
    if done + 1 == turns:
        return {"role": "assistant", "content": timing.ANSWER}
    call = {"id": f"call_{done}", "name": "add", "arguments": {"a": 1, "b": done}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


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


def main(url: str, plan: dict[int, int]) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "run_admin_server": False,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()
    timing.report(plan, lambda turns: timing.check(agent(turns)))
    DBOS.destroy()


if __name__ == "__main__":
    main(*timing.arguments())
