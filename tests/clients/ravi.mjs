// Runs an agent by ravi-client.js and approves what it asks. Prints each frame as JSON, and last what came of it.
const { module, url, token, agent, input, sockets } = JSON.parse(process.argv[2]);
if (!sockets) delete globalThis.WebSocket;
const { Client } = await import(module);
const client = new Client(url, { token });
let error = null;
try {
  for await (const frame of client.stream(agent, input)) {
    console.log(JSON.stringify(frame));
    if (frame.type === "request") await client.answer(frame.id, "approve");
  }
} catch ({ status, code, field, message }) {
  error = [status, code, message, field];
}
console.log(JSON.stringify({ error }));
