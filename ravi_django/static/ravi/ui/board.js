// The tasks that the agents of a conversation keep, as one card. It stands in the answer that changed it last.

import { element } from "./element.js";
import { t } from "./words.js";

const STATES = { todo: ["soft", "to do"], doing: ["running", "in progress"], done: ["completed", "done"], blocked: ["failed", "blocked"] };

export class Board {
  #tasks = new Map(); // by agent and number

  constructor() {
    this.root = element("details", "board");
    this.root.open = true;
  }

  // Tasks as REST and the `board` frame show them.
  take(...tasks) {
    for (const task of tasks) this.#tasks.set(`${task.agent} ${task.number}`, task);
    const all = [...this.#tasks.values()].sort((one, other) => one.agent.localeCompare(other.agent) || one.number - other.number);
    const summary = element("summary");
    const done = all.filter((task) => task.status === "done").length;
    summary.append(element("span", "name", t("Tasks")), " ", element("span", "gist", t("%s of %s done", done, all.length)));
    const list = element("ol");
    const several = new Set(all.map((task) => task.agent)).size > 1;
    list.append(...all.map((task) => this.#item(task, several)));
    this.root.replaceChildren(summary, list);
  }

  #item(task, several) {
    const item = element("li");
    const [mark, word] = STATES[task.status] ?? ["soft", task.status];
    const title = element("span", "title", task.title);
    if (several) title.append(" ", element("span", "by", task.label || task.agent));
    item.append(title, element("span", `state ${mark}`, t(word)));
    if (task.detail) item.title = task.detail;
    return item;
  }
}
