"""Uploads a file, submits a run with it, answers its requests, and reads the result, by openapi-python-client."""

import json
import sys
import time
from io import BytesIO

from site_api import AuthenticatedClient
from site_api.api.files import files_create, files_read
from site_api.api.requests import requests_answer, requests_list
from site_api.api.runs import runs_create, runs_read
from site_api.api.v1 import v1_models
from site_api.models import Answer, RequestAction, RunRequest, RunRequestInputType1Item, Upload
from site_api.models.requests_list_status import RequestsListStatus
from site_api.types import File

url, token = sys.argv[1:]
client = AuthenticatedClient(url, token, prefix="Token")
note = File(BytesIO(b"three invoices"), "note.txt", "text/plain")
upload = files_create.sync(client=client, body=Upload(file=note))
content = files_read.sync(upload.id, client=client)
blocks = [{"type": "text", "text": "Pay."}, {"type": "document", "file": str(upload.id)}]
body = RunRequest(agent="react/payer", input_=[RunRequestInputType1Item.from_dict(one) for one in blocks])
run = runs_create.sync(client=client, body=body)
waits = []
while run.status not in ("completed", "failed"):
    if run.waiting_on:
        waits.append(run.waiting_on.kind)
    asked = requests_list.sync(client=client, run=run.id, status=RequestsListStatus.PENDING)
    for request in asked.results:
        answer = Answer(action=RequestAction.APPROVE, version=request.version)
        requests_answer.sync(request.id, client=client, body=answer)
    run = runs_read.sync(run.id, client=client)
    time.sleep(0.05)
models = v1_models.sync_detailed(client=AuthenticatedClient(url, token))  # with Bearer
print(
    json.dumps(
        {"text": content.payload.read().decode(), "output": run.output, "waits": waits, "models": models.status_code}
    )
)
