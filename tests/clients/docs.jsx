// The React components of docs/howto/javascript.md and docs/reference/clients.md, on a page with <main id="root">.
import { createRoot } from "react-dom/client";
import { agent } from "./docs/agent.js";
import { Ask } from "./docs/Ask.jsx";
import { Chat } from "./docs/Chat.jsx";

createRoot(document.getElementById("root")).render(
  <>
    <Ask />
    <Chat agent={agent} />
  </>,
);
