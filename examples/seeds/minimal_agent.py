"""A message to an agent, and its answer. From the checkout, with a key for the model:

    export DJANGO_SETTINGS_MODULE=project.settings OPENAI_API_KEY=sk-…
    python manage.py migrate
    python -m examples.seeds.minimal_agent "What is 12 * 7?"

OPENAI_API_BASE names another server of the same protocol.
"""
# ruff: noqa: E402 - a script sets Django up before it imports what has models

import asyncio
import os
import sys

import django

django.setup()

from ravi_django.agents import ReActAgent, Runtime
from ravi_django.agents.context import ContextConfig, InMemoryHistoryProvider
from ravi_django.capabilities.tools import CalculatorTool
from ravi_django.integrations.llm import LLMFactory
from ravi_django.kernel import ChatMessage, ChatPayload, Message, Role

api_key = os.environ.get("OPENAI_API_KEY")
question = " ".join(sys.argv[1:]) or "What is 12 * 7?"

model = LLMFactory("gpt-4o", api_key).build()
agent = ReActAgent(
    "helper",
    model=model,
    tools=[CalculatorTool()],
    context=ContextConfig(InMemoryHistoryProvider()),
    system_instructions="You are a helpful assistant.",
)
boot_message = Message(target=agent.id, payload=ChatPayload(message=ChatMessage.of(Role.USER, question)))


async def main() -> None:
    async with Runtime() as rt:
        await rt.register(agent)
        run_id = await rt.submit(agent.id, boot_message)  # fire a message at the address
        print(await rt.result(run_id))


asyncio.run(main())
