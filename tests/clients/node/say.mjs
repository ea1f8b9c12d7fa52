// As ../python/say.py, for two libraries in Node: `node say.mjs CLIENT URL KEY`.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";

const [HELPER, PAYER, BROKEN, SLOW] = ["react/api-helper", "react/payer", "react/broken", "react/slow"];
const SCHEMA = { type: "object", properties: {} };
const user = (content) => ({ role: "user", content });
const messages = [user("6 * 7?")];
const pause = () => new Promise((resume) => setTimeout(resume, 3000)); // before the call after a stop: the server has seen by then that the client is gone

async function openai(baseURL, apiKey) {
  const { completions } = new OpenAI({ baseURL, apiKey }).chat;
  const answer = async (model, ...more) => {
    const completion = await completions.create({ model, messages: [...messages, ...more] });
    return completion.choices[0].message;
  };
  const first = await answer(HELPER);
  const second = await answer(HELPER, first, user("Again?"));
  const approval = { name: "approval", parameters: SCHEMA, function: () => "approve" };
  const tools = [{ type: "function", function: approval }];
  const paid = completions.runTools({ model: PAYER, messages, tools });
  const answered = await paid.finalContent();
  const asked = paid.messages.flatMap((message) => message.tool_calls ?? []).map((call) => call.function.name);
  const error = await answer(BROKEN).catch(String);
  const stream = await completions.create({ model: SLOW, messages, stream: true });
  let cut = "";
  for await (const chunk of stream) if ((cut = chunk.choices[0].delta.content)) break;
  await pause();
  const again = (await answer(SLOW)).content;
  return { first: first.content, second: second.content, asked, answered, error, cut, again };
}

async function aiSdk(model) {
  const ask = (name, more) => generateText({ model: model(name), messages, ...more });
  const first = await ask(HELPER);
  const second = await ask(HELPER, { messages: [...messages, ...first.response.messages, user("Again?")] });
  const approval = tool({ inputSchema: jsonSchema(SCHEMA), execute: () => "approve" });
  const paid = await ask(PAYER, { tools: { approval }, stopWhen: stepCountIs(3) });
  const asked = paid.steps.flatMap((step) => step.toolCalls).map((call) => call.toolName);
  const error = await ask(BROKEN).catch(String);
  const stop = new AbortController();
  const stream = streamText({ model: model(SLOW), messages, abortSignal: stop.signal });
  let cut = "";
  for await (const text of stream.textStream) if ((cut = text)) break;
  stop.abort();
  await pause();
  return { first: first.text, second: second.text, asked, answered: paid.text, error, cut, again: (await ask(SLOW)).text };
}

const CLIENTS = {
  openai,
  aiSdk: (baseURL, apiKey) => aiSdk(createOpenAI({ baseURL, apiKey })),
  aiSdkCompatible: (baseURL, apiKey) => aiSdk(createOpenAICompatible({ name: "site", baseURL, apiKey })),
};
const [name, ...site] = process.argv.slice(2);
process.stdout.write(JSON.stringify(await CLIENTS[name](...site)), () => process.exit());
