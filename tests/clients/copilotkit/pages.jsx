// The ten features of AG-UI's dojo, with CopilotKit: a page with <main id="chat" data-feature data-url data-token>.
import {
  CopilotChat,
  CopilotKitProvider,
  HttpAgent,
  useAgent,
  useAgentContext,
  useComponent,
  useFrontendTool,
  useHumanInTheLoop,
  useInterrupt,
  useRenderTool,
} from "@copilotkit/react-core/v2";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { z } from "zod";

const steps = z.object({ steps: z.array(z.string()) });

const features = {
  agentic_chat() {
    const [form, setForm] = useState({ city: "" });
    useAgentContext({ description: "The form", value: form });
    useFrontendTool({
      name: "fill_form",
      description: "Fill in the form. The user reads it before it is sent.",
      parameters: z.object({ city: z.string() }),
      handler: async ({ city }) => {
        setForm({ ...form, city });
        return "filled in";
      },
    });
    return <output>The city is {form.city}.</output>;
  },

  human_in_the_loop() {
    useHumanInTheLoop({
      name: "confirm_steps",
      description: "Let the user confirm the steps.",
      parameters: steps,
      render: ({ args, respond }) => (
        <section>
          {args.steps?.map((step) => <p key={step}>{step}</p>)}
          {respond && <button onClick={() => respond({ accepted: args.steps.slice(0, 1) })}>Only the first</button>}
        </section>
      ),
    });
  },

  backend_tools() {
    useRenderTool({
      name: "weather",
      parameters: z.object({ city: z.string() }),
      render: ({ parameters, status, result }) => <p>{`${status}: ${parameters.city} ${result ?? ""}`}</p>,
    });
  },

  tool_based_ui() {
    useComponent({
      name: "haiku",
      parameters: z.object({ lines: z.array(z.string()) }),
      render: ({ lines = [] }) => <blockquote>{lines.join(" / ")}</blockquote>,
    });
  },

  agentic_ui() {
    const { agent } = useAgent();
    return <p>{agent.state?.steps?.map(({ name, done }) => `${done ? "✓" : "…"} ${name}`).join(", ")}</p>;
  },

  shared_state() {
    const { agent } = useAgent();
    const dish = agent.state?.dish ?? "";
    const change = ({ target }) => agent.setState({ ...agent.state, dish: target.value });
    return <input aria-label="Dish" value={dish} onChange={change} />;
  },

  predictive_updates() {
    useFrontendTool({
      name: "write",
      description: "Write the document.",
      parameters: z.object({ text: z.string() }),
      handler: async () => "written",
      render: ({ args, status }) => <article>{`${status}: ${args.text ?? ""}`}</article>,
    });
  },

  sub_agents() {
    const { agent } = useAgent();
    const [children, setChildren] = useState([]);
    const add = ({ event }) => event.type.startsWith("SUBAGENT") && setChildren((all) => [...all, event]);
    useEffect(() => agent.subscribe({ onEvent: add }).unsubscribe, [agent]);
    return children.map((event, place) => <p key={place}>{`${event.type} ${event.name ?? ""}`}</p>);
  },

  reasoning() {},

  interrupts() {
    useInterrupt({
      render: ({ interrupts, resolve }) => (
        <section>
          <p>{interrupts[0].message}</p>
          <button onClick={() => interrupts.forEach(({ id }) => resolve({ action: "approve" }, id))}>Approve</button>
        </section>
      ),
    });
  },
};

class Agent extends HttpAgent {
  requestInit(input) {
    return super.requestInit({ ...input, protocolVersion: "1.0" }); // so the server sends events of sub-agents
  }
}

const place = document.getElementById("chat");
const { feature, url, token } = place.dataset;
const agent = new Agent({ url, headers: { Authorization: `Bearer ${token}` } });
const Feature = features[feature];
createRoot(place).render(
  <CopilotKitProvider selfManagedAgents={{ default: agent }} enableInspector={false}>
    <Feature />
    <CopilotChat />
  </CopilotKitProvider>,
);
