// A chat of assistant-ui on a page with <main id="chat" data-url="…" data-token="…">.
import { HttpAgent } from "@ag-ui/client";
import { AssistantRuntimeProvider, ComposerPrimitive, MessagePrimitive, ThreadPrimitive } from "@assistant-ui/react";
import { useAgUiInterrupts, useAgUiRuntime, useAgUiSubmitInterruptResponses } from "@assistant-ui/react-ag-ui";
import { createRoot } from "react-dom/client";

const place = document.getElementById("chat");
const { url, token } = place.dataset;

const agent = new HttpAgent({ url, headers: { Authorization: `Bearer ${token}` } });

function Chat() {
  const runtime = useAgUiRuntime({ agent });
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <Thread />
      <Approvals />
    </AssistantRuntimeProvider>
  );
}

function Approvals() {
  const open = useAgUiInterrupts();
  const answer = useAgUiSubmitInterruptResponses();
  const approved = ({ id }) => ({ interruptId: id, status: "resolved", payload: { action: "approve" } });
  return open.length > 0 && <button onClick={() => answer(open.map(approved))}>Approve</button>;
}

function Thread() {
  return (
    <ThreadPrimitive.Root>
      <ThreadPrimitive.Messages components={{ Message }} />
      <ComposerPrimitive.Root>
        <ComposerPrimitive.Input aria-label="Message" />
        <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
      </ComposerPrimitive.Root>
    </ThreadPrimitive.Root>
  );
}

function Message() {
  return (
    <MessagePrimitive.Root>
      <MessagePrimitive.Parts />
    </MessagePrimitive.Root>
  );
}

createRoot(place).render(<Chat />);
