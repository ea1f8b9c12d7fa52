"""Tools that live in the client: a page's functions, which its browser runs.

The tools of the call that began a run are stored with the run. They are offered to the model of the run's agent if that
has `client_tools`, never to children. The model knows each as `page_<name>`, so that none replaces a tool of the agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ravi_django.agents.tools.schemas import TooMuchToCheck, check_schema, schema_errors
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import Addressees, Effect, InputTooLargeError, InvalidInputError, Risk, Tool, ToolRegistry
from ravi_django.kernel.errors import ToolArgumentsError
from ravi_django.kernel.json_values import check_json

MAX_TOOLS, MAX_BYTES = 20, 32 * 1024  # of the tools of one run together
PREFIX = "page_"  # of their names, for the model
CONTEXT = "_ravi_context"  # the parameter that gets the RunContext; no tool of a page has it
NAME = "[A-Za-z0-9_-]{1,59}"  # with the prefix at most 64 characters, as providers allow

NOT_ANSWERED = "The page did not answer: it was closed, or the person went on. Do not call the tool again unasked."


class ClientTool(Tool):
    """A tool of the page. The call waits for the page's answer, like a question to the run's owner."""

    waits = True
    effect = Effect.IDEMPOTENT  # a repeated call finds its recorded request
    context_parameter = CONTEXT

    def __init__(self, spec: Mapping[str, Any], *, asks_first: bool) -> None:
        self.name, self.description, self.parameters = PREFIX + spec["name"], spec["description"], spec["parameters"]
        if asks_first:
            self.risk, self.approval, self.approvers = Risk.HIGH, "always", Addressees.of("owner")
        else:
            self.approval = "never"

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            errors = schema_errors(check_schema(self.parameters), super().validate(arguments), 3)
        except TooMuchToCheck as error:
            raise ToolArgumentsError(str(error), field="arguments") from None
        if errors:
            raise ToolArgumentsError(f"{self.name}: {'; '.join(errors[:3])}", field="arguments")
        return arguments

    async def execute(self, /, **arguments: Any) -> Any:
        ctx = arguments.pop(CONTEXT)
        answer = await ctx.ask_client(self.name, arguments)
        return answer.text if answer.answered else NOT_ANSWERED


def with_client_tools(tools: ToolRegistry, allowed: bool | str, specs: Sequence[Mapping[str, Any]]) -> ToolRegistry:
    """The agent's tools, then those of the run's page. A tool of the agent hides one of the page with its name."""
    if not allowed:
        return tools
    of_page = [ClientTool(spec, asks_first=allowed == Risk.HIGH) for spec in specs]
    return Toolbox([*tools.all(), *(tool for tool in of_page if tools.get(tool.name) is None)])


def checked_option(value: Any) -> bool | str:
    """The option `client_tools` of an agent."""
    if value is True or value is False or value == Risk.HIGH:
        return "high" if value == Risk.HIGH else value
    raise InvalidInputError(f"client_tools must be True, False or 'high', not {value!r}", field="client_tools")


def checked_tools(tools: Any, field: str = "tools") -> list[dict[str, Any]]:
    """The tools of a client, each {name, description, parameters}, as the run's row keeps them.

    Raises InvalidInputError that names the tool, and InputTooLargeError for more than MAX_TOOLS or MAX_BYTES.
    """
    if not isinstance(tools, list):
        raise InvalidInputError("tools must be a list", field=field)
    if len(tools) > MAX_TOOLS:
        raise InputTooLargeError(f"a client has at most {MAX_TOOLS} tools", field=field)
    check_json(field, tools, MAX_BYTES)
    specs = {spec["name"]: spec for spec in (_checked(tool, f"{field}.{n}") for n, tool in enumerate(tools))}
    if len(specs) < len(tools):
        raise InvalidInputError("two tools have the same name; rename one of them", field=field)
    return [*specs.values()]


def _checked(tool: Any, field: str) -> dict[str, Any]:
    match tool:
        case {"name": str(name)} if re.fullmatch(NAME, name):
            pass
        case _:
            text = "a tool has a name of 1 to 59 letters, digits, underscores and hyphens"
            raise InvalidInputError(text, field=f"{field}.name")
    description, schema = tool.get("description"), tool.get("parameters")
    if not isinstance(description, str | None):
        raise InvalidInputError(f"the description of {name} must be a text", field=f"{field}.description")
    schema = {} if schema is None else schema
    if not isinstance(schema, dict) or not isinstance(schema.get("$schema", ""), str):
        raise InvalidInputError(f"the parameters of {name} must be a JSON Schema", field=f"{field}.parameters")
    parameters = {"type": "object", "properties": {}, **schema}
    try:
        check_schema(parameters)
    except InvalidInputError as error:
        text = str(error).removeprefix("result_model ")
        raise InvalidInputError(f"the schema of {name} {text}", field=f"{field}.parameters") from None
    if parameters["type"] != "object" or CONTEXT in parameters["properties"]:
        raise InvalidInputError(f"the parameters of {name} must be an object", field=f"{field}.parameters")
    return {"name": name, "description": description or "", "parameters": parameters}
