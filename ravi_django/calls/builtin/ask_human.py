"""A question to a person, for a model: the run waits for the answer, however long that takes."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, cast

from pydantic import Field

from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.engine.lease.lease_state import TooManyRequests
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import Addressees, Effect, InvalidInputError, RunContext, TextBlock, ToolExecutionResult
from ravi_django.kernel.checks import check_whole
from ravi_django.people import requests

Question = Annotated[str, Field(min_length=1, max_length=requests.MAX_QUESTION)]
Context = Annotated[str, Field(max_length=requests.MAX_CONTEXT)]
Choice = Annotated[str, Field(min_length=1, max_length=requests.MAX_CHOICE)]
Choices = Annotated[list[Choice], Field(min_length=2, max_length=3)]

_TEXTS = {
    "skip": "The person skipped the question. Go on without the answer, by your best judgement, and say so.",
    "cancel": "The person does not want to be asked this. Go on without the answer, and do not ask it again.",
    "expired": "Nobody answered in time. Go on without the answer; this is no consent to anything.",
}


class AskHumanTool(FunctionTool):
    """`ask_human(question, context, choices, free_text)`: asks the run's owner, or the recipients in `to`.

    max_per_run: how many questions a run may ask through the tool; then the model gets an error. answer_within:
    seconds, or a timedelta, after which the question expires; None waits for ever. to: an address or several (see
    Addressees); never the model's choice.

    The run suspends meanwhile. After the answer the tool is called again and finds its recorded question.
    """

    waits = True

    def __init__(self, *, max_per_run: int = 3, answer_within: float | timedelta | None = None, to: Any = None) -> None:
        self.max_per_run = check_whole("max_per_run", max_per_run)
        self.answer_within = answer_within
        self.to = None if to is None else Addressees.of(to)

        async def ask_human(
            ctx: RunContext,
            question: Question,
            context: Context = "",
            choices: Choices | None = None,
            free_text: bool = True,
        ) -> ToolExecutionResult:
            """Ask a person, when you cannot go on without what only they know or may decide. Ask one thing at a time.

            Args:
                question: The question, understandable by itself.
                context: What the person needs to know to answer it.
                choices: 2 or 3 short answers to choose from.
                free_text: Whether an answer other than the choices is welcome.
            """
            return await self._ask(ctx, question, context=context, choices=choices, free_text=free_text)

        super().__init__(ask_human, effect=Effect.IDEMPOTENT)

    async def _ask(self, ctx: RunContext, question: str, **options: Any) -> ToolExecutionResult:
        try:
            answer = await requests.ask(
                cast(RunState, ctx),
                question,
                **options,
                timeout=self.answer_within,
                to=self.to,
                tool=self.name,
                most=self.max_per_run,
            )
        except TooManyRequests:
            asked = "one question" if self.max_per_run == 1 else f"{self.max_per_run} questions"
            return _result(f"You have asked {asked} in this run, which is the limit. Go on with what you know.", True)
        except InvalidInputError as error:
            return _result(str(error), True)
        if answer.answered:
            return _result(f"The person answered: {answer.text}")
        return _result(_TEXTS[answer.action])


def _result(text: str, is_error: bool = False) -> ToolExecutionResult:
    return ToolExecutionResult(content=[TextBlock(text=text)], is_error=is_error)
