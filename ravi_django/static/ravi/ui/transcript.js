// What the person sees of a conversation. Text of models is markdown (markdown.js); all other text goes in as text.

import { element } from "./element.js";
import { Prose } from "./markdown.js";
import { RequestCard } from "./requests.js";
import { t } from "./words.js";

// What one run of the agent said and did, built from frames (while it happens) or from messages (afterwards).
export class Answer {
  constructor(agent, api, inbox) {
    this.agent = agent;
    this.api = api;
    this.inbox = inbox;
    this.root = element("article", "answer");
    this.root.setAttribute("aria-label", t("Answer of %s", agent));
    this.root.setAttribute("part", "message");
    this.calls = new Map(); // one entry a model call: its text, its reasoning
    this.tools = new Map(); // by call id
    this.requests = new Map(); // to people, by id
  }

  live(on) {
    this.root.classList.toggle("live", on);
    this.root.setAttribute("aria-busy", String(on));
  }

  take(frame) {
    const kinds = {
      "text.delta": () => this.#say("text", frame),
      "reasoning.delta": () => this.#say("thought", frame),
      completion: () => this.#complete(frame),
      progress: () => this.#progress(frame),
      request: () => this.#request(frame),
      "request.closed": () => this.requests.get(frame.id)?.close(frame),
      "stream.gap": () => this.#gap(frame),
      error: () => this.fault(frame.message),
    };
    kinds[frame.type]?.();
  }

  note(text) {
    this.root.append(element("p", "note", text));
  }

  fault(text) {
    if (this.root.lastElementChild?.textContent === text) return;
    const shown = element("p", "fault", text);
    shown.setAttribute("role", "alert");
    this.root.append(shown);
  }

  // A stored message: the same blocks that a completion carries.
  message(role, blocks) {
    for (const block of blocks) {
      if (block.type === "text" && role === "assistant") this.#prose(this.root).set(block.text);
      else if (block.type === "thinking") this.#details("thought", t("Reasoning")).append(element("div", "said", block.text ?? block.thinking));
      else if (block.type === "tool_use") this.tool(block.call_id, block.tool_name, block.arguments);
      else if (block.type === "tool_result") this.toolResult(block.call_id, textOf(block.content), block.is_error);
    }
  }

  tool(id, name, parameters) {
    if (this.tools.has(id)) return this.tools.get(id);
    const box = this.#details("tool", "");
    const summary = box.firstElementChild;
    const state = element("span", "state", t("running"));
    summary.append(element("span", "name", name), element("span", "gist", gist(parameters)), state);
    box.append(element("pre", "", JSON.stringify(parameters ?? {}, null, 2)));
    const tool = { box, state };
    this.tools.set(id, tool);
    return tool;
  }

  toolResult(id, text, isError) {
    const tool = this.tools.get(id);
    if (!tool || tool.ended) return;
    tool.ended = true;
    tool.state.textContent = isError ? t("failed") : `= ${shorten(text)}`;
    tool.box.classList.toggle("failed", Boolean(isError));
    tool.box.append(element("pre", "", text));
  }

  #request(frame) {
    if (this.requests.has(frame.id)) return this.requests.get(frame.id).open(frame); // again, after a retry
    const card = new RequestCard(this.api, frame, this.inbox);
    this.requests.set(frame.id, card);
    this.root.append(card.root);
  }

  #progress(frame) {
    const { step, content } = frame;
    const id = `${frame.run} ${content?.path}`;
    if (step === "tool_call") this.tool(id, content.tool, content.arguments);
    else if (step === "tool_result") {
      this.tool(id, content.tool); // its start is not recorded: after a gap there is the result alone
      this.toolResult(id, content.text, content.is_error);
    } else if (step === "handoff") this.note(t(content.from ? "Handed over to %s." : "Asked %s.", content.agent));
  }

  #say(kind, frame) {
    const call = this.#call(frame);
    if (call.attempt !== frame.attempt || frame.again) {
      call.attempt = frame.attempt;
      call.text?.clear();
      if (call.thought) call.thought.textContent = "";
    }
    this.#part(call, kind, frame).append(frame.text);
  }

  #complete(frame) {
    const call = this.#call(frame);
    const texts = (frame.content ?? []).filter((block) => block.type === "text");
    if (texts.length) this.#part(call, "text", frame).set(texts.map((block) => block.text).join(""));
  }

  #call(frame) {
    const key = `${frame.run} ${frame.call}`;
    if (!this.calls.has(key)) this.calls.set(key, { attempt: frame.attempt });
    return this.calls.get(key);
  }

  #part(call, kind, frame) {
    if (!call[kind]) {
      const parent = kind === "thought" ? this.#details("thought", t("Reasoning")) : this.root;
      if (frame.agent !== this.agent) parent.append(element("span", "by", frame.agent));
      call[kind] = kind === "text" ? this.#prose(parent) : parent.appendChild(element("div", "said"));
    }
    return call[kind];
  }

  #prose(parent) {
    const prose = new Prose();
    parent.append(prose.root);
    return prose;
  }

  #gap(frame) {
    this.note(t("A part of the live text was lost. This is the recorded part."));
    for (const kept of frame.snapshot?.frames ?? []) this.take(kept);
  }

  #details(className, title) {
    const box = element("details", className);
    box.append(element("summary", "", title));
    this.root.append(box);
    return box;
  }
}

export function blocksOf(content) {
  return typeof content === "string" ? [{ type: "text", text: content }] : (content ?? []);
}

export function textOf(content) {
  return blocksOf(content).filter((block) => block.type === "text").map((block) => block.text).join("\n");
}

function gist(parameters) {
  const values = Object.values(parameters ?? {}).map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
  return shorten(values.join(", "), 80);
}

function shorten(text, length = 40) {
  const line = String(text ?? "").split("\n")[0];
  return line.length > length ? `${line.slice(0, length)}…` : line;
}
