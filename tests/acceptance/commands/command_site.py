"""The demo site with agents for the command tests: a settings module, and an app, in one.

`RAVI_ENGINE` in the environment overrides the engine, `RAVI_TEST_ALIAS` names the database.
"""

import os

from django.apps import AppConfig

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS, RAVI

INSTALLED_APPS = [*INSTALLED_APPS, "command_site.CommandSite"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a real one takes half a second
RAVI = {
    **RAVI,
    "ENGINE": os.environ.get("RAVI_ENGINE", RAVI["ENGINE"]),
    "DRAIN_S": float(os.environ.get("COMMAND_SITE_DRAIN_S", 1)),
    "HEARTBEAT_S": float(os.environ.get("COMMAND_SITE_HEARTBEAT_S", 0.5)),
    "SWEEP_S": 0.5,
    "RETRY_BASE_S": 0.1,
}
if alias := os.environ.get("RAVI_TEST_ALIAS"):  # whoever uses the default database gets an error
    DATABASES = {"default": {}, alias: DATABASES["default"]}
    DATABASE_ROUTERS = ["command_site.Router"]
    RAVI["DATABASE"] = alias


class Router:
    def db_for_read(self, model: object, **hints: object) -> str:
        return os.environ["RAVI_TEST_ALIAS"]

    db_for_write = db_for_read


class CommandSite(AppConfig):
    name = "command_site"

    def ready(self) -> None:
        import asyncio

        from ravi_django import register, tool
        from ravi_django.agents import ReActAgent
        from ravi_django.kernel import DeterminismError, ModelError, TextBlock, ToolUseBlock, TransientError
        from ravi_django.testing import ScriptedModel

        async def slow(messages: object, options: object) -> str:
            await asyncio.sleep(120)
            return "at last"

        async def told(messages: object, options: object) -> str:
            print("the model is asked", flush=True)
            return await slow(messages, options)

        @tool
        async def hold(number: int) -> str:
            """Return once the file COMMAND_SITE_GATE exists."""
            print("a tool is called", flush=True)
            while not os.path.exists(os.environ["COMMAND_SITE_GATE"]):
                await asyncio.sleep(0.01)
            return "through"

        def flaky(messages: object, options: object) -> object:
            flaky.calls += 1
            return TransientError("overloaded, come back later") if flaky.calls == 1 else "better now"

        flaky.calls = 0

        class Quiet:
            """Streams nothing and calls no model."""

            from ravi_django.kernel import AgentId

            id = AgentId("plain", "quiet")

            async def run(self, ctx: object, inbox: object) -> str:
                return "said in the end"

        class Drifted:
            from ravi_django.kernel import AgentId

            id = AgentId("plain", "drifted")

            async def run(self, ctx: object, inbox: object) -> str:
                raise DeterminismError("the code no longer fits")

        for key, script in {
            "slow": [slow],
            "told": [told],
            "refused": [ModelError("no such key: sk-nothing", type="AuthenticationError")],
            "flaky": [flaky],
            "rude": [[TextBlock(text="red \x1b[31malert\x1b[0m\x07 done")]],
        }.items():
            register(ReActAgent(key, model=ScriptedModel(script)))
        calls = [
            ToolUseBlock(tool_name="hold", arguments={"number": number}, call_id=f"c{number}") for number in range(6)
        ]
        register(ReActAgent("parallel", model=ScriptedModel([calls, "done"]), tools=[hold]))
        register(Quiet())
        register(Drifted())
