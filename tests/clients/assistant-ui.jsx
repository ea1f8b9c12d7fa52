// A chat of assistant-ui on a page with <main id="chat" data-url="…" data-token="…">.
import { HttpAgent } from "@ag-ui/client";
import { useAssistantTool } from "@assistant-ui/react";
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { Chat } from "./docs/Chat.jsx";

const place = document.getElementById("chat");
const { url, token } = place.dataset;

const agent = new HttpAgent({ url, headers: { Authorization: `Bearer ${token}` } });

function Form() {
  const [form, setForm] = useState({ city: "" });
  useAssistantTool({
    toolName: "fill_form",
    type: "frontend",
    description: "Fill in the form. The user reads it before it is sent.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    execute: async ({ city }) => {
      setForm({ ...form, city });
      return "filled in";
    },
  });
  return <output>The city is {form.city}.</output>;
}

createRoot(place).render(
  <Chat agent={agent}>
    <Form />
  </Chat>,
);
