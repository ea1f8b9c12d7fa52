"""Four conversations by a library at its defaults: `python say.py CLIENT URL KEY`. Prints JSON of what the client saw:

first, second   the answers to two messages of one conversation
asked           the names of the tool calls that the client got
answered        the answer after the client has approved them
error           what the client says about a failed run, after the retries of its own
cut, again      the text of a stream until the client stopped it, and the answer to the same call

A client is a function of URL and KEY that returns three functions: `ask(agent, text, history)` returns the answer and
the history with it, `approve()` the tool calls and the answer, `cut()` the text before the stop.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HELPER, PAYER, BROKEN, SLOW = "react/api-helper", "react/payer", "react/broken", "react/slow"
ASK, AGAIN = "6 * 7?", "Again?"
SCHEMA = {"type": "object", "properties": {}}
PAUSE_S = 3.0  # before the call after a stop: the server has seen by then that the client is gone
LOOP = asyncio.new_event_loop()  # clients keep connections
Client = tuple[Callable[..., tuple[Any, Any]], Callable[[], tuple[list[str], Any]], Callable[[], Any]]


def openai(url: str, key: str) -> Client:
    import openai

    return by_hand(openai.OpenAI(base_url=url, api_key=key).chat.completions.create)


def litellm(url: str, key: str) -> Client:
    import litellm

    def chat(model: str, messages: Any, **options: Any) -> Any:
        options |= {"num_retries": 2} if model == BROKEN else {}
        return litellm.completion(f"openai/{model}", messages, api_base=url, api_key=key, **options)

    return by_hand(chat)


def by_hand(chat: Any) -> Client:
    """`chat` is called as OpenAI's `chat.completions.create`."""

    def ask(agent: str, text: str = ASK, history: Any = ()) -> Any:
        messages = [*history, {"role": "user", "content": text}]
        answer = chat(model=agent, messages=messages).choices[0].message
        return answer.content, [*messages, answer]

    def approve() -> Any:
        _, history = ask(PAYER)
        calls = history[-1].tool_calls
        results = [{"role": "tool", "tool_call_id": call.id, "content": "approve"} for call in calls]
        answer = chat(model=PAYER, messages=[*history, *results]).choices[0].message
        return [call.function.name for call in calls], answer.content

    def cut() -> Any:
        stream = chat(model=SLOW, messages=[{"role": "user", "content": ASK}], stream=True)
        text = next(text for chunk in stream if (text := chunk.choices[0].delta.content))
        getattr(stream, "completion_stream", stream).close()  # litellm's stream has no `close`
        return text

    return ask, approve, cut


def langchain(url: str, key: str) -> Client:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    def model(agent: str) -> Any:
        found = ChatOpenAI(model=agent, base_url=url, api_key=key)
        return found.with_retry(wait_exponential_jitter=False) if agent == BROKEN else found

    def ask(agent: str, text: str = ASK, history: Any = ()) -> Any:
        messages = [*history, HumanMessage(text)]
        answer = model(agent).invoke(messages)
        return answer.content, [*messages, answer]

    def approve() -> Any:
        _, history = ask(PAYER)
        calls = history[-1].tool_calls
        results = [ToolMessage("approve", tool_call_id=call["id"]) for call in calls]
        return [call["name"] for call in calls], model(PAYER).invoke([*history, *results]).content

    def cut() -> Any:
        stream = model(SLOW).stream(ASK)
        text = next(chunk.content for chunk in stream if chunk.content)
        stream.close()
        return text

    return ask, approve, cut


def openai_agents(url: str, key: str) -> Client:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)  # it sends to OpenAI
    provider = agents.OpenAIProvider(openai_client=AsyncOpenAI(base_url=url, api_key=key))
    config = agents.RunConfig(model_provider=provider)

    async def approval(context: Any, arguments: str) -> str:
        return "approve"

    def run(agent: str, messages: Any, tools: Any = ()) -> Any:
        return agents.Runner.run_sync(agents.Agent("site", model=agent, tools=[*tools]), messages, run_config=config)

    def ask(agent: str, text: str = ASK, history: Any = ()) -> Any:
        done = run(agent, [*history, {"role": "user", "content": text}])
        return done.final_output, done.to_input_list()

    def approve() -> Any:
        tool = agents.FunctionTool("approval", "", SCHEMA, approval, strict_json_schema=False)
        done = run(PAYER, ASK, [tool])
        return [item.raw_item.name for item in done.new_items if item.type == "tool_call_item"], done.final_output

    async def cut() -> Any:
        result = agents.Runner.run_streamed(agents.Agent("site", model=SLOW), ASK, run_config=config)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text = event.data.delta
                result.cancel()
        return text

    return ask, approve, lambda: LOOP.run_until_complete(cut())


def pydantic_ai(url: str, key: str) -> Client:
    from pydantic_ai import Agent, Tool
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key=key)

    def site(agent: str, **options: Any) -> Any:
        return Agent(OpenAIChatModel(agent, provider=provider), **options)

    def ask(agent: str, text: str = ASK, history: Any = ()) -> Any:
        done = site(agent).run_sync(text, message_history=history)
        return done.output, done.all_messages()

    def approve() -> Any:
        tool = Tool.from_schema(lambda **arguments: "approve", "approval", "", SCHEMA)
        done = site(PAYER, tools=[tool]).run_sync(ASK)
        parts = [part for message in done.all_messages() for part in message.parts]
        return [part.tool_name for part in parts if isinstance(part, ToolCallPart)], done.output

    async def cut() -> Any:
        async with site(SLOW).run_stream(ASK) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                await result.cancel()
                return text

    return ask, approve, lambda: LOOP.run_until_complete(cut())


def llama_index(url: str, key: str) -> Client:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.chat_engine import SimpleChatEngine
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    def model(agent: str, **options: Any) -> Any:
        return OpenAILike(model=agent, api_base=url, api_key=key, is_chat_model=True, **options)

    def ask(agent: str, text: str = ASK, history: Any = ()) -> Any:
        engine = SimpleChatEngine.from_defaults(llm=model(agent), chat_history=[*history])
        return engine.chat(text).response, engine.chat_history

    def approve() -> Any:
        tools = [FunctionTool.from_defaults(lambda: "approve", name="approval", description="")]
        payer, history, names = model(PAYER, is_function_calling_model=True), [ChatMessage(ASK)], []
        answer = payer.chat_with_tools(tools, chat_history=history).message
        while calls := answer.additional_kwargs.get("tool_calls"):  # by default it keeps one call of each answer
            names += [call.function.name for call in calls]
            ids = [{"tool_call_id": call.id} for call in calls]
            history += [answer, *(ChatMessage("approve", role="tool", additional_kwargs=id) for id in ids)]
            answer = payer.chat_with_tools(tools, chat_history=history).message
        return names, answer.content

    def cut() -> Any:
        stream = model(SLOW).stream_chat([ChatMessage(ASK)])
        text = next(chunk.delta for chunk in stream if chunk.delta)
        stream.close()
        gc.collect()  # nothing else closes its connection
        return text

    return ask, approve, cut


def llm(url: str, key: str) -> Client:
    """The program `llm`. Needs the variable LLM_USER_PATH."""
    common = {"api_base": url, "api_key_name": "site", "supports_tools": True}
    models = [{"model_id": name, "model_name": name, **common} for name in (HELPER, PAYER, BROKEN, SLOW)]
    folder = Path(os.environ["LLM_USER_PATH"])
    (folder / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    (folder / "keys.json").write_text(json.dumps({"site": key}))

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [Path(sys.executable).with_name("llm"), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(agent: str, text: str = ASK, is_again: Any = False) -> Any:
        answer, error = start(*(["-c"] if is_again else ["-m", agent]), text).communicate()
        if error:
            raise RuntimeError(error)
        return answer.strip(), True

    def approve() -> Any:
        approval = "def approval(text, tool, arguments, free_text, risk, actions):\n    return 'approve'"
        answer, shown = start("-m", PAYER, ASK, "--functions", approval, "--tools-debug").communicate()
        calls = [line.removeprefix("Tool call: ") for line in shown.split("\n") if line.startswith("Tool call: ")]
        return [call.partition("(")[0] for call in calls], answer.strip()

    def cut() -> Any:
        process = start("-m", SLOW, ASK)
        text = process.stdout and process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.communicate()
        return text

    return ask, approve, cut


def instructor(url: str, key: str) -> Client:
    """Its answers are objects, here those of a typed agent, in the mode that uses `response_format`. It has no tool
    calls and no text to stop."""
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class Count(BaseModel):
        people: int

    def ask(agent: str, text: str = ASK, history: Any = ()) -> Any:
        messages = [*history, {"role": "user", "content": text}]
        mode = instructor.Mode.TOOLS if agent == BROKEN else instructor.Mode.JSON_SCHEMA  # TOOLS is its default
        ai = instructor.from_openai(OpenAI(base_url=url, api_key=key), mode=mode)
        answer = ai.create(model="react/typed", messages=messages, response_model=Count).model_dump_json()
        return answer, [*messages, {"role": "assistant", "content": answer}]

    return ask, lambda: ([], None), lambda: None


def main(name: str, *site: str) -> None:
    asyncio.set_event_loop(LOOP)
    ask, approve, cut = globals()[name](*site)
    saw: dict[str, Any] = {}
    saw["first"], history = ask(HELPER)
    saw["second"], _ = ask(HELPER, AGAIN, history)
    saw["asked"], saw["answered"] = approve()
    try:
        ask(BROKEN)
    except Exception as error:  # each client has its own
        saw["error"] = str(error)
    saw["cut"] = cut()
    time.sleep(PAUSE_S)
    saw["again"], _ = ask(SLOW)
    print(json.dumps(saw))


if __name__ == "__main__":
    main(*sys.argv[1:])
