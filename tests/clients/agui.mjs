// Has a conversation by AG-UI's official client. The argument is JSON: {url, token, thread, steps: [{say} or {answers}]};
// the answers are to the open interrupts, in their order. Writes what came of each step, as JSON.
import { HttpAgent } from "@ag-ui/client";

const { url, token, thread, steps } = JSON.parse(process.argv[2]);
const agent = new HttpAgent({ url, threadId: thread, headers: { Authorization: `Bearer ${token}` } });
const came = [];
for (const [number, step] of steps.entries()) {
  const seen = { kinds: [], text: "", error: null };
  const subscriber = {
    onEvent: ({ event }) => {
      seen.kinds.push(event.type);
      if (event.type === "TEXT_MESSAGE_CONTENT") seen.text += event.delta;
      if (event.type === "RUN_ERROR") seen.error = event.message;
    },
  };
  if (step.say) agent.addMessage({ id: `m${number}`, role: "user", content: step.say });
  const resume = step.answers?.map((payload, place) => ({
    interruptId: agent.pendingInterrupts[place].id,
    status: "resolved",
    payload,
  }));
  await agent.runAgent(resume ? { resume } : {}, subscriber).catch((error) => (seen.error ??= String(error)));
  came.push({ ...seen, interrupts: agent.pendingInterrupts.map((interrupt) => interrupt.message), state: agent.state });
}
console.log(JSON.stringify(came));
