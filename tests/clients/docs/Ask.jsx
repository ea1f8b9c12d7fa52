import { useState } from "react";
import { Client } from "./ravi-client.js";

const client = new Client("/ravi/");

export function Ask() {
  const [text, setText] = useState("");

  async function ask(event) {
    event.preventDefault();
    const calls = {}; // the text of each model call
    try {
      for await (const frame of client.stream("react/helper", new FormData(event.target).get("question"))) {
        if (frame.type !== "text.delta") continue;
        const id = frame.run + frame.call;
        const before = calls[id]?.attempt === frame.attempt ? calls[id].text : ""; // a new attempt replaces the text
        calls[id] = { attempt: frame.attempt, text: before + frame.text };
        setText(Object.values(calls).map((call) => call.text).join(""));
      }
    } catch (error) {
      setText(error.message);
    }
  }

  return (
    <form onSubmit={ask}>
      <input name="question" aria-label="Question" />
      <button>Ask</button>
      <output>{text}</output>
    </form>
  );
}
