// What an agent asks of people, as a card in the conversation. All text goes in as text: nothing here parses HTML.

import { element } from "./element.js";
import { visible } from "./visible.js";

const INBOX = document.querySelector("script[data-api]")?.dataset.inbox ?? ""; // staff's, in the admin
const DONE = { approve: "Approved", edit: "Approved, with changes", deny: "Denied", answer: "Answered", skip: "Skipped", cancel: "Refused", resolve: "Decided" };
const CLOSED = { expired: "Nobody answered in time.", cancelled: "Nobody waits for an answer any more." };

export class RequestCard {
  // `frame` is the stream's `request`; who may do what with it, the API says.
  constructor(api, frame) {
    this.api = api;
    this.root = element("section", "request");
    this.root.dataset.request = frame.id;
    this.root.setAttribute("aria-label", frame.kind === "approval" ? "Approval" : "Question");
    this.root.append(element("p", "asks", visible(frame.text || `May ${frame.tool} be called?`)));
    if (frame.context) this.root.append(element("p", "context", visible(frame.context)));
    if (frame.tool && frame.arguments) {
      this.root.append(element("p", "name", visible(frame.tool)), element("pre", "", visible(JSON.stringify(frame.arguments, null, 2))));
    }
    this.state = element("p", "state");
    this.state.setAttribute("role", "status");
    this.root.append(this.state);
    this.open(frame);
  }

  // The stream says that it is asked, for the first time or once more.
  open(frame) {
    this.asked = frame;
    this.closed = false;
    this.#drop();
    this.fault?.remove();
    this.fault = null;
    this.state.textContent = `Waits for ${waits(frame)}.`;
    this.#look();
  }

  // The stream says that it is over.
  close(frame) {
    this.closed = true;
    this.#drop();
    this.state.textContent = CLOSED[frame.status] ?? "A person has decided.";
    this.#look();
  }

  async #look() {
    const mine = (this.looks = (this.looks ?? 0) + 1);
    let row;
    try {
      row = await this.api.get(`requests/${this.asked.id}/`);
    } catch {
      return; // not theirs to see any more: the stream's words stand
    }
    if (mine !== this.looks) return; // the stream has said more meanwhile, and is looked up for that
    if (row.status !== "pending") {
      this.#drop();
      const said = visible(row.answer?.text || row.answer?.reason || "");
      const who = row.answer?.by ? ` by ${row.answer.by}` : "";
      this.state.textContent = CLOSED[row.status] ?? `${DONE[row.answer?.action] ?? "Decided"}${who}${said ? `: ${said}` : "."}`;
    } else if (!this.closed) {
      const own = INBOX && row.to === "staff" && !row.may_answer; // staff, but for four eyes
      this.state.textContent = `Waits for ${waits(row)}.${own ? " Another person decides on a call of your own run." : ""}`;
      if (this.row?.version !== row.version || !row.may_answer) this.#drop();
      this.row = row;
      if (row.may_answer && !this.controls) this.root.append((this.controls = this.#form(row)));
    }
  }

  #drop() {
    this.controls?.remove();
    this.controls = null;
  }

  #form(row) {
    const form = element("form", "decide");
    form.append(...(row.kind === "approval" ? this.#approval(row) : row.kind === "uncertain" ? [] : this.#question(row)));
    if (INBOX) {
      const link = element("a", "", "Open in the inbox");
      link.href = INBOX;
      form.append(link);
    }
    form.onsubmit = (event) => event.preventDefault();
    return form;
  }

  #question(row) {
    const parts = [];
    const several = Object.entries(row.questions ?? {});
    const fields = (several.length ? several : row.free_text ? [["", "Answer"]] : []).map(([key, label]) => [key, field(visible(label))]);
    for (const choice of row.choices ?? []) parts.push(this.#button(visible(choice), () => ({ action: "answer", text: choice })));
    parts.push(...fields.map(([, [label]]) => label));
    if (several.length) {
      const values = () => Object.fromEntries(fields.map(([key, [, input]]) => [key, input.value]));
      parts.push(this.#button("Answer", () => ({ action: "answer", values: values() }), "primary", "submit"));
    } else if (fields.length) {
      parts.push(this.#button("Answer", () => ({ action: "answer", text: fields[0][1][1].value }), "primary", "submit"));
    }
    parts.push(this.#button("Skip", () => ({ action: "skip" }), "quiet"));
    return parts;
  }

  // No button here submits the form: Enter in the field decides nothing.
  #approval() {
    const [label, reason] = field("Reason");
    const say = (action) => () => ({ action, ...(reason.value.trim() && { reason: reason.value.trim() }) });
    return [label, this.#button("Approve", say("approve"), "primary"), this.#button("Deny", say("deny"))];
  }

  #button(text, answer, className = "", type = "button") {
    const button = element("button", className, text);
    button.type = type;
    button.onclick = () => this.#answer(answer());
    return button;
  }

  async #answer(answer) {
    for (const button of this.controls.querySelectorAll("button")) button.disabled = true;
    try {
      await this.api.post(`requests/${this.asked.id}/answer/`, { ...answer, version: this.row.version });
    } catch (error) {
      this.#fault(error.message);
      for (const button of this.controls?.querySelectorAll("button") ?? []) button.disabled = false;
    }
    this.#look(); // decided, maybe by somebody else
  }

  #fault(text) {
    this.fault ??= this.root.appendChild(element("p", "fault"));
    this.fault.setAttribute("role", "alert");
    this.fault.textContent = text;
  }
}

function field(text) {
  const label = element("label", "", text);
  const input = element("input");
  input.maxLength = 10000;
  label.append(input);
  return [label, input];
}

function waits(frame) {
  const [kind, name] = [frame.to?.split(":", 1)[0] ?? "", frame.to?.slice(frame.to.indexOf(":") + 1)];
  const who = { owner: "whoever began this chat", user: name, group: `the group ${name}`, permission: `somebody who may ${name}` }[kind] ?? "staff";
  return frame.kind === "approval" ? `approval by ${who}` : frame.kind === "uncertain" ? `a decision by ${who}` : `an answer by ${who}`;
}
