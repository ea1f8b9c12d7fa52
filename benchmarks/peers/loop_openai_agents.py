"""The loop in the OpenAI Agents SDK with a model that answers at once. It records nothing: no durability to pay for.

Runs in the peers' environment: python loop_openai_agents.py DATABASE_URL LEASE_S
"""

import asyncio
import json

import timing
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return timing.add(a, b)


class InstantModel(Model):
    def __init__(self, turns: int) -> None:
        self.turns = turns

    async def get_response(self, system_instructions, input, *args, **kwargs) -> ModelResponse:
        done = sum(item.get("type") == "function_call" for item in input) if isinstance(input, list) else 0
        return ModelResponse(output=[self._said(done)], usage=Usage(), response_id=None)

    def _said(self, done: int):
        if done + 1 == self.turns:
            text = ResponseOutputText(text=timing.ANSWER, type="output_text", annotations=[])
            return ResponseOutputMessage(
                id=f"msg_{done}", type="message", role="assistant", status="completed", content=[text]
            )
        arguments = json.dumps({"a": 1, "b": done})
        return ResponseFunctionToolCall(
            id=f"fc_{done}", call_id=f"call_{done}", type="function_call", name="add", arguments=arguments
        )

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError("the loop does not stream")


def main(url: str, lease_s: int) -> None:
    set_tracing_disabled(True)
    with asyncio.Runner() as runner:  # one loop for all runs, as in a server

        def run(turns: int) -> None:
            agent = Agent(name="bench", tools=[add], model=InstantModel(turns))
            result = runner.run(Runner.run(agent, timing.QUESTION, max_turns=turns + 1))
            timing.check(result.final_output)

        timing.serve(run)


if __name__ == "__main__":
    main(*timing.arguments())
