// What an agent asks of people, as a card in the conversation. All text goes in as text: nothing here parses HTML.

import { element } from "./element.js";
import { visible } from "./visible.js";
import { t } from "./words.js";

const DONE = { approve: "Approved", edit: "Approved, with changes", deny: "Rejected", answer: "Answered", skip: "Skipped", cancel: "Refused", resolve: "Decided" };
const CLOSED = { expired: "Nobody answered in time.", cancelled: "Nobody waits for an answer any more." };

export class RequestCard {
  // `frame` is the stream's `request`; who may do what with it, the API says.
  // `inbox` is the address of the list of requests in the admin, for staff.
  constructor(api, frame, inbox = "") {
    this.api = api;
    this.inbox = inbox;
    this.root = element("section", "request");
    this.root.dataset.request = frame.id;
    this.root.setAttribute("aria-label", t(frame.kind === "approval" ? "Approval" : "Question"));
    const facts = frame.context ? [element("p", "context", visible(frame.context))] : [];
    if (frame.tool && frame.arguments) {
      facts.push(element("p", "name", visible(frame.tool)), element("pre", "", visible(JSON.stringify(frame.arguments, null, 2))));
    }
    this.about = element(facts.length ? "details" : "div");
    this.about.append(element(facts.length ? "summary" : "p", "asks", visible(frame.text || t("May %s be called?", frame.tool))), ...facts);
    this.root.append(this.about);
    this.state = element("p", "state");
    this.state.setAttribute("role", "status");
    this.root.append(this.state);
    this.open(frame);
  }

  // The stream says that it is asked, for the first time or once more.
  open(frame) {
    this.asked = frame;
    this.closed = false;
    this.about.open = true;
    this.#drop();
    this.fault?.remove();
    this.fault = null;
    this.state.textContent = waits(frame);
    this.#look();
  }

  // The stream says that it is over.
  close(frame) {
    this.closed = true;
    this.about.open = false;
    this.#drop();
    this.state.textContent = t(CLOSED[frame.status] ?? "A person has decided.");
    this.#look();
  }

  async #look() {
    const mine = (this.looks = (this.looks ?? 0) + 1);
    await null; // of what the stream says at once, only the last is looked up
    if (mine !== this.looks) return;
    let row;
    try {
      row = await this.api.get(`requests/${this.asked.id}/`);
    } catch {
      return; // not theirs to see any more: the stream's words stand
    }
    if (mine !== this.looks) return; // the stream has said more meanwhile, and is looked up for that
    if (row.status !== "pending") {
      this.about.open = false;
      this.#drop();
      const said = visible(row.answer?.text || row.answer?.reason || "");
      const how = t(DONE[row.answer?.action] ?? "Decided");
      const what = row.answer?.by ? t("%s by %s", how, row.answer.by) : how;
      this.state.textContent = row.status in CLOSED ? t(CLOSED[row.status]) : `${what}${said ? `: ${said}` : "."}`;
    } else if (!this.closed) {
      const own = this.inbox && row.to === "staff" && !row.may_answer; // staff, but for four eyes
      this.state.textContent = `${waits(row)}${own ? ` ${t("Another person decides on a call of your own run.")}` : ""}`;
      if (this.row?.version !== row.version || !row.may_answer) this.#drop();
      this.row = row;
      if (row.may_answer && !this.controls) {
        this.root.append((this.controls = this.#form(row)));
        // A card that appears under a pointer must not be clicked.
        for (const button of this.controls.querySelectorAll("button")) wakeUp(button);
      }
    }
  }

  #drop() {
    this.controls?.remove();
    this.controls = null;
  }

  #form(row) {
    const form = element("form", "decide");
    form.append(...(row.kind === "approval" ? this.#approval(row) : row.kind === "uncertain" ? this.#uncertain() : this.#question(row)));
    if (this.inbox) {
      const link = element("a", "", t("Open in the inbox"));
      link.href = this.inbox;
      form.append(link);
    }
    form.onsubmit = (event) => event.preventDefault();
    return form;
  }

  #question(row) {
    const parts = [];
    const several = Object.entries(row.questions ?? {});
    const fields = (several.length ? several : row.free_text ? [["", t("Answer")]] : []).map(([key, label]) => [key, field(visible(label))]);
    for (const choice of row.choices ?? []) parts.push(this.#button(visible(choice), () => ({ action: "answer", text: choice })));
    parts.push(...fields.map(([, [label]]) => label));
    if (several.length) {
      const values = () => Object.fromEntries(fields.map(([key, [, input]]) => [key, input.value]));
      parts.push(this.#button(t("Answer"), () => ({ action: "answer", values: values() }), "primary", "submit"));
    } else if (fields.length) {
      parts.push(this.#button(t("Answer"), () => ({ action: "answer", text: fields[0][1][1].value }), "primary", "submit"));
    }
    parts.push(this.#button(t("Skip"), () => ({ action: "skip" }), "quiet"));
    return parts;
  }

  // A call that may have happened: its result, as JSON or a text, or no result.
  #uncertain() {
    const [label, result] = field(t("Result"));
    const say = (outcome) => () => ({ action: "resolve", outcome });
    const happened = () => ({ ...say("happened")(), ...(result.value.trim() && { result: jsonOf(result.value) }) });
    return [
      label,
      this.#button(t("It happened"), happened, "primary"),
      this.#button(t("It did not: run it again"), say("run_again")),
      this.#button(t("Fail the run"), say("fail"), "danger"),
    ];
  }

  // No button here submits the form: Enter in the field decides nothing.
  #approval() {
    const [label, reason] = field(t("Reason"));
    const say = (action) => () => ({ action, ...(reason.value.trim() && { reason: reason.value.trim() }) });
    return [label, this.#button(t("Approve"), say("approve"), "primary"), this.#button(t("Reject"), say("deny"))];
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
      await this.api.answer(this.asked.id, answer.action, { ...answer, version: this.row.version });
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

// The JSON in a field, else its text.
export function jsonOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function wakeUp(button) {
  button.inert = true;
  setTimeout(() => (button.inert = false), 500);
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
  const words = { approval: "Waits for approval by %s.", uncertain: "Waits for a decision by %s." }[frame.kind] ?? "Waits for an answer by %s.";
  const group = { owner: () => t("the person who began this conversation"), user: () => name, group: () => t("the group %s", name) };
  return t(words, (group[kind] ?? (() => (kind === "permission" ? t("people with the permission %s", name) : t("staff"))))());
}
