"""An image or a document that comes in over REST reaches the model."""

from __future__ import annotations

from base64 import b64decode

import pytest
from django.core.files.base import ContentFile
from django.utils import timezone

from ravi_django.calls.llm import LLMFactory
from ravi_django.models import InboxMessage, JournalEntry, RaviFile, Run, Turn
from tests.support.openai_server import OpenAIServer

pytestmark = pytest.mark.django_db(transaction=True)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def test_an_uploaded_file_is_read_for_the_model_only(web, agent, drive):
    sent = {"file": ContentFile(b64decode(PNG), "a.png")}
    file = web.post("/ravi/files/", sent, format="multipart").json()
    with OpenAIServer() as server:
        model = LLMFactory("openai/gpt-4o", "sk-x-0123456789abc", api_base=server.base_url).build()
        body = {"agent": agent(model), "input": [{"type": "image", "file": file["id"]}]}
        first = web.post("/ravi/runs/", body, format="json").json()
        drive(first["id"])
        again = {"agent": body["agent"], "input": "and now?", "session": first["session"]}
        drive(web.post("/ravi/runs/", again, format="json").json()["id"])  # the history has the file
        RaviFile.objects.update(owner=None, unused_until=timezone.now())
        late = web.post("/ravi/runs/", again, format="json").json()
        drive(late["id"])

    assert [run.status for run in Run.objects.order_by("id")] == ["completed", "completed", "failed"]
    assert f"file {file['id']} was deleted" in Run.objects.get(id=late["id"]).error["message"]
    for request in server.requests:
        assert f"data:image/png;base64,{PNG}" in str(request.body["messages"])
    named = {"type": "image", "file": file["id"], "name": "a.png", "size": 70, "mime_type": "image/png"}
    assert Turn.objects.order_by("position").first().content == [named]
    for model in (InboxMessage, JournalEntry, Turn):
        assert PNG not in str(list(model.objects.values())), model
