"""The loop as a Pydantic AI agent, made durable by its DBOS capability: a model request and a tool call are DBOS steps.

Runs in the peers' environment: python loop_pydantic_ai.py DATABASE_URL LEASE_S. Without the capability it is volatile.
"""

import asyncio

import timing
from dbos import DBOS
from loop_dbos import launch
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits

turns_wanted = 0  # of the run that is under way: a process makes one run at a time


async def answer_at_once(messages: list, info: object) -> ModelResponse:
    done = sum(isinstance(message, ModelResponse) for message in messages)
    if done + 1 == turns_wanted:
        return ModelResponse(parts=[TextPart(timing.ANSWER)])
    return ModelResponse(parts=[ToolCallPart("add", {"a": 1, "b": done}, tool_call_id=f"call_{done}")])


agent = Agent(FunctionModel(answer_at_once), name="bench", capabilities=[DBOSDurability()])


@agent.tool_plain
@DBOS.step()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return timing.add(a, b)


@DBOS.workflow()
async def ask(turns: int) -> str:
    result = await agent.run(timing.QUESTION, usage_limits=UsageLimits(request_limit=turns + 1))
    return result.output


def main(url: str, lease_s: int) -> None:
    launch(url)
    with asyncio.Runner() as runner:  # one loop for all runs, as in a server

        def run(turns: int) -> None:
            global turns_wanted
            turns_wanted = turns
            timing.check(runner.run(ask(turns)))

        timing.serve(run)
    DBOS.destroy()


if __name__ == "__main__":
    main(*timing.arguments())
