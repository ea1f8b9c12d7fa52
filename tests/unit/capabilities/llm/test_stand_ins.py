"""The stand-ins of providers refuse a request for each rule that the provider documents."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from tests.support.cases import case
from tests.support.providers import Body, Checker
from tests.support.providers.chat import check_chat
from tests.support.providers.gemini import PLACEHOLDER, call, check_gemini
from tests.support.providers.mistral import check_mistral

Change = Callable[[Any], object]  # of the list of messages


def refusals(request: Body, of: str, check: Checker, changes: dict[str, Change]) -> None:
    """`request` is accepted, and refused with the words of each key after its change."""
    assert check(request) is None
    for words, change in changes.items():
        with case(words):
            wrong = deepcopy(request)
            change(wrong[of])
            assert words in (check(wrong) or "accepted")


def test_gemini_refuses_what_breaks_its_rules() -> None:
    def text(role: str, text: str = "hi") -> Body:
        return {"role": role, "parts": [{"text": text}]}

    def result(name: str) -> Body:
        return {"function_response": {"name": name, "response": {"content": "x"}}}

    answers = [call("echo", "s1", text="a"), call("chart")]
    contents = [text("user"), {"role": "model", "parts": answers}]
    contents += [{"role": "user", "parts": [result("echo"), result("chart")]}, text("user", "more")]
    changes: dict[str, Change] = {
        "use a valid role": lambda c: c[0].update(role="system"),
        "parts must not be empty": lambda c: c[0].update(parts=[]),
        "one initialized field": lambda c: c[0]["parts"].append({"text": ""}),
        "must have one": lambda c: c[1]["parts"][0].update(text="both"),
        "Invalid function name": lambda c: c[1]["parts"][1]["functionCall"].update(name="7"),
        "after a user turn": lambda c: c.insert(0, text("model")),
        "ending with a model turn": lambda c: c.append(text("model")),
        "multiturn requests alternate": lambda c: c.insert(0, text("user")),
        "number of function response parts": lambda c: c[2]["parts"].pop(),
        "names match": lambda c: c[2]["parts"].reverse(),
        "function responses only": lambda c: c[2]["parts"].append({"text": "hi"}),
        "Corrupted thought signature. s2": lambda c: c[1]["parts"][0].update(thoughtSignature="s2"),
        "Corrupted thought signature. None": lambda c: c[1]["parts"][0].pop("thoughtSignature"),
        "Corrupted thought signature. s1": lambda c: c[1]["parts"][1].update(thoughtSignature="s1"),
        "Corrupted thought signature.": lambda c: c[0]["parts"][0].update(thoughtSignature="s1"),
    }
    request = {"contents": contents}
    refusals(request, "contents", check_gemini(answers), changes)
    running = {"contents": contents[:3]}

    def foreign(signature: str | None = None, ends: int = 3, **id: str) -> Body:
        parts = [call("echo", signature, text="b", **id), call("chart", **id)]
        return {"contents": [contents[0], {"role": "model", "parts": parts}, *contents[2:ends]]}

    assert "is missing a thought_signature" in str(check_gemini()(foreign()))
    assert check_gemini()(foreign(PLACEHOLDER)) is None
    assert check_gemini()(foreign(ends=4)) is None, "of a turn that has ended"
    assert check_gemini(model=2)(foreign()) is None
    assert "Unknown name" in str(check_gemini(model=2)(foreign(id="1")))
    system = {"system_instruction": {"parts": [{"text": ""}]}}
    assert "must not be empty" in str(check_gemini(answers)(running | system))
    schema = {"tools": [{}], "generationConfig": {"response_mime_type": "application/json"}}
    assert "mime type" in str(check_gemini(answers)(running | schema))


def called(*ids: str) -> Body:
    calls = [{"id": id, "type": "function", "function": {"name": "echo", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id: str) -> Body:
    return {"role": "tool", "tool_call_id": id, "content": "x"}


USER: Body = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
SAID: Body = {"role": "assistant", "content": "so"}


def test_mistral_refuses_what_breaks_its_rules() -> None:
    one, two = "D681PevKs", "E681PevKs"
    system = {"role": "system", "content": "Help."}
    messages = [system, USER, SAID, called(one, two), result(one), result(two), SAID, USER]
    pdf = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}}
    changes: dict[str, Change] = {
        "Input tag 'developer'": lambda m: m[0].update(role="developer"),
        "user.name: Extra inputs": lambda m: m[1].update(name="ada"),
        "assistant.reasoning_content: Extra": lambda m: m[2].update(reasoning_content="hm"),
        "Input tag 'video'": lambda m: m[1]["content"].append({"type": "video"}),
        "Input tag 'thinking'": lambda m: m[1]["content"].append({"type": "thinking", "thinking": []}),
        "file.file: Extra inputs": lambda m: m[1]["content"].append(pdf),
        "a valid string": lambda m: m[1].update(content=None),
        "but not none": lambda m: m[2].update(content=""),
        "but not both": lambda m: m[3].update(content="so"),
        "with a length of 9": lambda m: m[3]["tool_calls"][0].update(id="toolu_123"),
        "id was None": lambda m: m[4].pop("tool_call_id"),
        "Function name": lambda m: m[3]["tool_calls"][0]["function"].update(name="a b"),
        "at least one message": lambda m: m.clear(),
        "role 'user' after role 'tool'": lambda m: m.pop(6),
        "role 'system' after role 'assistant'": lambda m: m.insert(7, system),
        "must be last": lambda m: m[2].update(prefix=True),
        "got assistant": lambda m: m.pop(),
        "has to be defined": lambda m: m.insert(5, result("F681PevKs")),
        "Not the same number": lambda m: m.pop(5),
    }
    refusals({"messages": messages}, "messages", check_mistral, changes)
    assert check_mistral({"messages": [USER, SAID | {"prefix": True}]}) is None
    assert "body.seed" in str(check_mistral({"messages": [USER], "seed": 1}))


def test_openai_and_deepseek_refuse_what_breaks_their_rules() -> None:
    messages = [USER, called("c1", "c2"), result("c1"), result("c2"), USER]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    changes: dict[str, Change] = {
        "must be a response": lambda m: m.pop(1),
        "must be followed": lambda m: m.pop(3),
        "'reasoning_content'": lambda m: m[1].update(reasoning_content="hm"),
        "messages.name": lambda m: m[0].update(name="a b"),
        "got null": lambda m: m.append({"role": "assistant", "content": None}),
        "'type' in content": lambda m: m[2].update(content=[image]),
        "tool_calls.extra_content": lambda m: m[1]["tool_calls"][0].update(extra_content={}),
        "too long": lambda m: (m[1]["tool_calls"][0].update(id="c" * 41), m[2].update(tool_call_id="c" * 41)),
        "function.name": lambda m: m[1]["tool_calls"][0]["function"].update(name="a b"),
    }
    refusals({"messages": messages}, "messages", check_chat(), changes)
    assert "Missing `reasoning_content`" in str(check_chat(thinks=True)({"messages": messages}))
    assert "'type' in content" in str(check_chat(images=False)({"messages": [USER | {"content": [image]}]}))
