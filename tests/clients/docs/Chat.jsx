import { AssistantRuntimeProvider, ComposerPrimitive, MessagePrimitive, ThreadPrimitive } from "@assistant-ui/react";
import { useAgUiInterrupts, useAgUiRuntime, useAgUiSubmitInterruptResponses } from "@assistant-ui/react-ag-ui";

export function Chat({ agent, children }) {
  const runtime = useAgUiRuntime({ agent });
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ThreadPrimitive.Root>
        <ThreadPrimitive.Messages components={{ Message }} />
        <ComposerPrimitive.Root>
          <ComposerPrimitive.Input aria-label="Message" />
          <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
        </ComposerPrimitive.Root>
      </ThreadPrimitive.Root>
      <Approvals />
      {children}
    </AssistantRuntimeProvider>
  );
}

function Message() {
  return (
    <MessagePrimitive.Root>
      <MessagePrimitive.Parts />
    </MessagePrimitive.Root>
  );
}

function Approvals() {
  const open = useAgUiInterrupts();
  const answer = useAgUiSubmitInterruptResponses();
  const approved = ({ id }) => ({ interruptId: id, status: "resolved", payload: { action: "approve" } });
  const areApprovals = open.length > 0 && open.every(({ reason }) => reason === "approval");
  return areApprovals && <button onClick={() => answer(open.map(approved))}>Approve</button>;
}
