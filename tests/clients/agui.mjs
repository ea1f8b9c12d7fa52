// Has a conversation by AG-UI's official client. The argument is JSON: {url, token, thread, steps}; a step is {say},
// {answers}, which are to the open interrupts, in their order, or {result} of the last tool call. {tools} are the client's. With {cut} the connection is destroyed after the first
// event of this type, and the call is repeated with its runId. Writes what came of each call, as JSON.
import { connect, createServer } from "node:net";
import { HttpAgent } from "@ag-ui/client";

const { url, token, thread, steps } = JSON.parse(process.argv[2]);
const site = new URL(url);
let cut = null;
const proxy = createServer((wire) => {
  const onward = connect(site.port, site.hostname);
  wire.pipe(onward).on("data", (chunk) => {
    const place = cut ? chunk.indexOf(cut) : -1;
    if (place < 0) return wire.write(chunk);
    cut = null;
    onward.destroy();
    wire.write(chunk.subarray(0, chunk.indexOf("\n\n", place) + 2), () => wire.destroy());
  });
  for (const end of [wire, onward]) end.on("error", () => {}).on("close", () => (wire.destroy(), onward.destroy()));
});
await new Promise((ready) => proxy.listen(0, "127.0.0.1", ready));
process.on("unhandledRejection", () => {}); // after a cut, beside the one of runAgent
const agent = new HttpAgent({
  url: `http://127.0.0.1:${proxy.address().port}${site.pathname}`,
  threadId: thread,
  headers: { Authorization: `Bearer ${token}` },
});
const came = [];
for (const [number, step] of steps.entries()) {
  if (step.say) agent.addMessage({ id: `m${number}`, role: "user", content: step.say });
  const calls = agent.messages.flatMap((message) => message.toolCalls ?? []);
  if (step.result) agent.addMessage({ id: `t${number}`, role: "tool", toolCallId: calls.at(-1).id, content: step.result });
  const resume = step.answers?.map((payload, place) => ({
    interruptId: agent.pendingInterrupts[place].id,
    status: "resolved",
    payload,
  }));
  cut = step.cut;
  for (let tries = step.cut ? 2 : 1; tries > 0; tries--) {
    const seen = { kinds: [], text: "", error: null };
    const subscriber = {
      onEvent: ({ event }) => {
        seen.kinds.push(event.type);
        if (event.type === "TEXT_MESSAGE_CONTENT") seen.text += event.delta;
        if (event.type === "RUN_ERROR") seen.error = event.message;
      },
    };
    const input = { runId: `run${number}`, tools: step.tools, ...(resume && { resume }) };
    await agent.runAgent(input, subscriber).catch((error) => (seen.error ??= String(error)));
    const interrupts = agent.pendingInterrupts.map((interrupt) => interrupt.message);
    came.push({ ...seen, interrupts, state: agent.state, said: agent.messages.map(({ content }) => content ?? null) });
  }
}
process.stdout.write(JSON.stringify(came), () => process.exit());
