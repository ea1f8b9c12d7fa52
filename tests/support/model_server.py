"""The OpenAI-protocol server for runs that a test steers: each conversation has a script and calls that are held."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from project.process import wait_until
from tests.support.openai_server import Body, OpenAIServer, Reply, Script, _pause, steps_script


@dataclass
class Conversation:
    """Requests whose last user message is `text`. A call's number says how far the conversation is: from 1."""

    about: str
    script: Script
    hold: set[int]  # each is held once: whoever asks again is answered
    text: str = ""
    requests: list[Body] = field(default_factory=list)
    _open: threading.Event = field(default_factory=threading.Event)
    _held: set[int] = field(default_factory=set)

    def calls(self) -> list[int]:
        """The number of each call that came, in the order they came."""
        return [call_number(body) for body in list(self.requests)]

    def counts(self) -> Counter[int]:
        return Counter(self.calls())

    def wait_held(self, number: int, timeout: float = 60.0) -> None:
        """Until call `number` is in flight: all before it are recorded then."""
        assert wait_until(lambda: number in self._held, timeout), f"call {number} of {self.text!r} did not come"

    def release(self) -> None:
        self._open.set()


def call_number(body: Body) -> int:
    count = 1
    for message in reversed(body["messages"]):
        if message["role"] == "user":
            break
        count += message["role"] == "assistant"
    return count


def said(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def last_user_text(body: Body) -> str:
    return next((said(message) for message in reversed(body["messages"]) if message["role"] == "user"), "")


class ModelServer(OpenAIServer):
    def __init__(self) -> None:
        super().__init__(self._reply)
        self._conversations: dict[str, Conversation] = {}

    def conversation(
        self, about: str = "run", *, script: Script | None = None, steps: int = 0, hold: Collection[int] = ()
    ) -> Conversation:
        """A new one: `steps` calculator calls, one a turn, then an answer; or a script of its own."""
        found = Conversation(about, script or steps_script(steps), set(hold))
        self.renew(found)
        return found

    def renew(self, conversation: Conversation) -> None:
        """The same from its beginning, under another text."""
        conversation.text = f"{conversation.about} {uuid4().hex[:8]}"
        conversation.requests, conversation._held, conversation._open = [], set(), threading.Event()
        self._conversations[conversation.text] = conversation

    def _reply(self, body: Body) -> Reply:
        found = self._conversations.get(last_user_text(body))
        return found.script(body) if found else Reply(text="I was not expecting that.")

    async def _answer(self, path: str, body: Body, send: Any, gone: Any) -> None:
        found = self._conversations.get(last_user_text(body))
        if found is not None:
            found.requests.append(body)
            call = call_number(body)
            if call in found.hold and call not in found._held:
                found._held.add(call)
                while not found._open.is_set():
                    if await _pause(0.01, gone):
                        return
        await super()._answer(path, body, send, gone)
