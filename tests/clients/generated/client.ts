// Uploads a file, submits a run with it, answers its requests, and reads the result, with types of openapi-typescript.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const [, , url, token] = process.argv;
const api = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}`, Accept: "application/json" } });
const bearer = { headers: { Authorization: `Token ${token}` } };

const form = new FormData();
form.append("file", new Blob(["three invoices"], { type: "text/plain" }), "note.txt");
const upload = await api.POST("/ravi/files/", { ...bearer, body: { file: "note.txt" }, bodySerializer: () => form });
if (!upload.data) throw new Error(JSON.stringify(upload.error));
const content = await api.GET("/ravi/files/{id}/", { ...bearer, params: { path: { id: upload.data.id } }, parseAs: "text" });

const input: components["schemas"]["RunRequest"]["input"] = [
  { type: "text", text: "Pay." },
  { type: "document", file: upload.data.id },
];
const submitted = await api.POST("/ravi/runs/", { ...bearer, body: { agent: "react/payer", input } });
if (!submitted.data) throw new Error(JSON.stringify(submitted.error));
const { id } = submitted.data;

const waits: string[] = [];
let run = submitted.data;
while (!["completed", "failed"].includes(run.status)) {
  if (run.waiting_on) waits.push(run.waiting_on.kind);
  const asked = await api.GET("/ravi/requests/", { ...bearer, params: { query: { run: id, status: "pending" } } });
  for (const request of asked.data?.results ?? []) {
    const body: components["schemas"]["Answer"] = { action: "approve", version: request.version };
    await api.POST("/ravi/requests/{id}/answer/", { ...bearer, params: { path: { id: request.id } }, body });
  }
  const { data } = await api.GET("/ravi/runs/{id}/", { ...bearer, params: { path: { id } } });
  if (data) run = data;
  await new Promise((done) => setTimeout(done, 50));
}
const models = await api.GET("/ravi/v1/models"); // with Bearer
console.log(JSON.stringify({ text: content.data, output: run.output, waits, models: models.response.status }));
