// What the person sees of a conversation. Text of models is markdown (markdown.js); all other text goes in as text.

import { element } from "./element.js";
import { Prose } from "./markdown.js";
import { RequestCard } from "./requests.js";
import { foldTools, gist, Step } from "./step.js";
import { errorInWords, statusInWords, t, took } from "./words.js";

// What one run of the agent said and did, built from frames (while it happens) or from messages (afterwards).
export class Answer {
  // `staff`: the reader sees what an error says to a developer, and why a run is blocked.
  constructor(agent, api, { inbox, staff }) {
    this.isStaff = staff !== undefined;
    this.agent = agent;
    this.api = api;
    this.inbox = inbox;
    this.root = element("article", "answer");
    this.root.setAttribute("aria-label", t("Answer of %s", agent));
    this.root.setAttribute("part", "message");
    this.calls = new Map(); // one entry a model call: its text, its reasoning
    this.tools = new Map(); // by call id
    this.children = new Map(); // cards of runs below this one, by run id
    this.requests = new Map(); // to people, by id
    this.texts = []; // of this agent, for copying
  }

  live(on) {
    this.root.classList.toggle("live", on);
    this.root.setAttribute("aria-busy", String(on));
    if (!on) for (const box of [this.root, ...[...this.children.values()].map((child) => child.root)]) foldTools(box);
  }

  get text() {
    return this.texts.map((prose) => prose.text).join("\n\n");
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
      error: () => this.hold || frame.depth || this.fault(frame.code, frame.message),
    };
    kinds[frame.type]?.();
  }

  // Whether the answer was not streamed: an agent with a `run` of its own returns it.
  lacks(output) {
    const bare = (text) => text.replace(/\s/g, "");
    return Boolean(output) && !bare(this.text).includes(bare(output));
  }

  ended(run) {
    if (run.status === "completed" && this.lacks(run.output)) this.#prose(this.root, true).set(run.output);
    if (run.status === "failed") this.fault(run.error?.type, run.error?.message);
    if (run.status === "cancelled") this.note(t("Stopped."));
  }

  note(text) {
    this.root.append(element("p", "note", text));
  }

  // An error of the run in a box of its own, once; `type` is its name. A run that a person stopped has none.
  fault(type, message = "") {
    if (type === "Cancelled" || this.root.lastElementChild?.matches(".ravi-error")) return;
    const box = element("div", "ravi-error");
    box.setAttribute("role", "alert");
    const text = errorInWords(type, message);
    box.append(element("p", "", text));
    if (this.isStaff && message && message !== text) box.append(element("p", "details", `${type}: ${message}`));
    this.root.append(box);
  }

  // Buttons and figures below the answer, once it has ended.
  foot(buttons, figures) {
    this.root.querySelector(".foot")?.remove();
    const foot = element("div", "foot");
    foot.append(...buttons, element("span", "num", figures));
    this.root.append(foot);
  }

  // An ended run as it was streamed, and what people said meanwhile; all of its messages, if the stream was pruned.
  past(rows, frames) {
    const left = [...frames];
    const isAnswer = (row) => row.role === "assistant" && !row.interrupted; // a stopped one has no completion
    const isMessage = (frame) => frame.type === "completion" && !frame.depth;
    let calls = frames.filter(isMessage).length - rows.filter(isAnswer).length; // to take before a person's message
    for (const row of rows) {
      if (isAnswer(row)) calls++;
      for (; row.role === "user" && calls > 0 && left.length; this.take(left.shift())) if (isMessage(left[0])) calls--;
      if (row.role === "user") this.root.append(said(this.api, row.content));
      else if (!frames.length) this.#message(row.role, blocksOf(row.content));
    }
    for (const frame of left) this.take(frame);
    this.live(false);
  }

  // A stored message: the same blocks that a completion carries.
  #message(role, blocks) {
    for (const block of blocks) {
      if (block.type === "text" && role === "assistant") this.#prose(this.root, true).set(block.text);
      else if (block.type === "thinking") this.#details(this.root, t("Reasoning")).append(element("div", "said", block.text ?? block.thinking));
      else if (block.type === "tool_use") this.#tool(this.root, block.call_id, block.tool_name, block.arguments);
      else if (block.type === "tool_result") this.#toolEnd(block.call_id, textOf(block.content), block.is_error);
    }
  }

  // Where a frame's run has its steps: the answer, or the card of a run below.
  #ledger(frame) {
    return frame.depth ? this.#child(frame.run, frame.agent, this.children.get(frame.parent)?.root ?? this.root, frame).root : this.root;
  }

  #child(run, agent, box, frame) {
    if (!this.children.has(run)) {
      const card = new Step("tool agent", agent, "", Date.parse(frame.ts));
      card.root.open = true;
      box.append(card.root);
      this.children.set(run, card);
    }
    return this.children.get(run);
  }

  #tool(box, id, name, parameters, at) {
    if (this.tools.has(id)) return;
    const card = new Step("tool", name, gist(parameters), at);
    if (parameters) card.value(t("Arguments"), JSON.stringify(parameters, null, 2));
    box.append(card.root);
    this.tools.set(id, card);
  }

  #toolEnd(id, text, isError, at) {
    const card = this.tools.get(id);
    if (!card || card.ended) return;
    card.end(Boolean(isError), at);
    if (text) card.value(t("Result"), text);
    if (isError) card.root.open = true;
  }

  #request(frame) {
    if (frame.kind === "client_tool") return; // for the page: the card of the tool shows the call
    if (this.requests.has(frame.id)) return this.requests.get(frame.id).open(frame); // again, after a retry
    const card = new RequestCard(this.api, frame, this.inbox);
    this.requests.set(frame.id, card);
    this.#ledger(frame).append(card.root);
    for (let box = card.root; (box = box.parentElement?.closest("details")); ) box.open = true;
  }

  #progress(frame) {
    const { step, content } = frame;
    const id = `${frame.run} ${content?.path}`;
    const at = Date.parse(frame.ts);
    const child = this.children.get(frame.run);
    if (content?.status === "retried") this.hold = this.hold?.remove();
    if (content?.status === "blocked") this.#blocked(frame);
    if (step === "tool_call") this.#tool(this.#ledger(frame), id, content.tool, content.arguments, at);
    else if (step === "tool_result") {
      this.#tool(this.#ledger(frame), id, content.tool); // its start is not recorded: after a gap there is the result alone
      this.#toolEnd(id, content.text, content.is_error, at);
    } else if (step === "handoff" && content.from) this.note(t("Handed over to %s.", content.agent));
    else if (step === "handoff" && content.run) this.#child(content.run, content.agent, this.#ledger(frame), frame);
    else if (step === "started") child?.working();
    else if (child && (step === "error" || (step === "done" && !content))) {
      child.end(step === "error", at);
      child.root.open = step === "error";
    }
  }

  // The run, or one below it, waits for an operator.
  #blocked({ run, content }) {
    this.hold?.remove();
    this.hold = this.root.appendChild(element("p", "ravi-error", statusInWords(content)));
    this.hold.setAttribute("role", "alert");
    if (!this.isStaff) return;
    const link = element("a", "", t("Show the run"));
    link.href = new URL(`ui/runs/${run}/`, this.api.base);
    this.hold.append(" ", content.message, " ", link);
  }

  #say(kind, frame) {
    const call = this.#call(frame);
    if (call.attempt !== frame.attempt) {
      // An attempt is "lease" or "lease.repeat": another lease continues a lost one.
      const lost = parseInt(call.attempt) < parseInt(frame.attempt);
      const note = lost && element("p", "note", t("The worker stopped. Another one continues; recorded steps are not repeated."));
      if (lost) (call.text?.root ?? call.thought?.parentElement)?.before(note);
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
    if (call.thought) call.title.textContent = t("Thought for %s", took((call.said ?? Date.parse(frame.ts)) - call.begun));
  }

  #call(frame) {
    const key = `${frame.run} ${frame.call}`;
    if (!this.calls.has(key)) this.calls.set(key, { attempt: frame.attempt });
    return this.calls.get(key);
  }

  #part(call, kind, frame) {
    if (kind === "text") call.said ??= Date.parse(frame.ts);
    if (!call[kind]) {
      const box = this.#ledger(frame);
      if (!frame.depth && frame.agent !== this.agent) box.append(element("span", "by", frame.agent));
      if (kind === "thought") {
        const details = this.#details(box, t("Reasoning"));
        Object.assign(call, { begun: Date.parse(frame.ts), title: details.firstChild });
        call.thought = details.appendChild(element("div", "said"));
      } else call.text = this.#prose(box, !frame.depth);
    }
    return call[kind];
  }

  #prose(box, own) {
    const prose = new Prose();
    box.append(prose.root);
    if (own) this.texts.push(prose);
    return prose;
  }

  #gap(frame) {
    this.note(t("A part of the live text was lost. This is the recorded part."));
    for (const kept of frame.snapshot?.frames ?? []) this.take(kept);
  }

  #details(parent, title) {
    const box = element("details", "thought");
    box.append(element("summary", "", title));
    parent.append(box);
    return box;
  }
}

function blocksOf(content) {
  return typeof content === "string" ? [{ type: "text", text: content }] : (content ?? []);
}

export function textOf(content) {
  return blocksOf(content).filter((block) => block.type === "text").map((block) => block.text).join("\n");
}

// A message of a person.
export function said(api, content) {
  const root = element("p", "user", textOf(content));
  root.setAttribute("part", "message");
  if (!Array.isArray(content)) return root;
  root.prepend(...content.filter((block) => block.type === "data").map(({ data }) => element("span", "about", aboutOf(data))));
  root.append(...content.filter((block) => block.file).map((block) => fileOf(api, block)));
  return root;
}

// All of a block of data: a page of the admin in brief, anything else as JSON.
function aboutOf(data) {
  const { model, pk = "", filters = {}, ...more } = data?.page ?? { more: 1 };
  if (Object.keys(more).length || Object.keys(data).length > 1) return JSON.stringify(data);
  return [`${model} ${pk}`.trim(), ...Object.entries(filters).map(([name, value]) => `${name}=${value}`)].join(", ");
}

export function fileOf(api, { type, file, name, size }) {
  const link = element("a", "file", type === "image" ? "" : `${name} (${size < 1e6 ? `${Math.ceil(size / 1e3)} kB` : `${(size / 1e6).toFixed(1)} MB`})`);
  link.href = new URL(`files/${file}/`, api.base);
  if (type === "image") Object.assign(link.appendChild(element("img")), { src: link.href, alt: name, title: name });
  return link;
}

// The frames of an ended run, from the first; none once they were pruned.
export async function framesOf(api, run) {
  const frames = [];
  for (let page = {}; !page.done && page.results?.length !== 0; frames.push(...page.results)) {
    page = await api.get(`runs/${run}/events/?after=${frames.at(-1)?.seq ?? 0}`);
  }
  return frames;
}
