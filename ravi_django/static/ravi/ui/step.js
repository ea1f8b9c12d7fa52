// One step of an answer as a card that folds: a tool call, or the work of another agent with its own steps inside.

import { button, copyButton, element } from "./element.js";
import { t, took } from "./words.js";

const MOST = 20; // lines of a value that are shown at once

export class Step {
  // `begun` is the time of its first frame in ms; without it the card shows no duration.
  constructor(className, name, gist, begun) {
    this.begun = begun;
    this.root = element("details", className);
    this.time = element("span", "num soft");
    this.state = element("span", "state");
    const summary = element("summary");
    summary.append(element("span", "name", name), element("span", "gist", gist), this.time, this.state);
    this.root.append(summary);
    this.working();
  }

  working() {
    this.ended = false;
    this.#mark("running", t("running"));
  }

  end(failed, at) {
    if (this.ended) return;
    this.ended = true;
    this.#mark(failed ? "failed" : "completed", t(failed ? "failed" : "done"));
    this.root.classList.toggle("failed", failed);
    if (this.begun && at) this.time.textContent = took(at - this.begun);
  }

  #mark(kind, word) {
    this.state.className = `state ${kind}`;
    this.state.textContent = word;
  }

  value(label, text) {
    const lines = text.split("\n");
    const box = element("div", "value");
    const shown = element("pre", "", lines.slice(0, MOST).join("\n"));
    shown.tabIndex = 0;
    shown.setAttribute("aria-label", label);
    box.append(copyButton(() => text), shown);
    if (lines.length > MOST) {
      const all = button(t("Show all %s lines", lines.length), () => {
        shown.textContent = text;
        all.remove();
      });
      box.append(all);
    }
    this.root.append(box);
  }
}

// Tools in a row, more than five, become one line.
export function foldTools(box) {
  let row = [];
  for (const node of [...box.children, null]) {
    if (node?.matches(".tool:not(.failed, .agent)")) {
      row.push(node);
      continue;
    }
    if (row.length > 5) {
      const fold = element("details", "tools");
      fold.append(element("summary", "", t("%s tools", row.length)));
      row[0].before(fold);
      fold.append(...row);
    }
    row = [];
  }
}

export function gist(parameters) {
  const values = Object.values(parameters ?? {}).map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
  const line = values.join(", ").split("\n")[0];
  return line.length > 80 ? `${line.slice(0, 80)}…` : line;
}
