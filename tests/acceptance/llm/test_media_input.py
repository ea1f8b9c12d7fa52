"""An image or a document that comes in over REST reaches the model."""

from __future__ import annotations

import pytest

from ravi_django.capabilities.llm import LLMFactory
from ravi_django.models import Run
from tests.support.openai_server import OpenAIServer

pytestmark = pytest.mark.django_db(transaction=True)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def test_an_image_and_a_document(web, agent, drive):
    said = [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "data": PNG, "mime_type": "image/png"},
        {"type": "image", "url": "https://files.example/a.png"},
        {"type": "document", "data": "JVBERi0xLjQK", "mime_type": "application/pdf", "name": "a.pdf"},
    ]
    with OpenAIServer() as server:
        model = LLMFactory("openai/gpt-4o", "sk-x-0123456789abc", api_base=server.base_url).build()
        posted = web.post("/ravi/runs/", {"agent": agent(model), "input": said}, format="json")
        assert posted.status_code == 201, posted.json()
        drive(posted.json()["id"])

    assert Run.objects.get().status == "completed"
    (asked,) = [message for message in server.requests[0].body["messages"] if message["role"] == "user"]
    assert asked["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": "https://files.example/a.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0xLjQK", "filename": "a.pdf"}},
    ]
