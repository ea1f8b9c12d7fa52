// The list of conversations by their last message: search, rename, delete. Each is a link, so that it opens in a new tab
// too. Forks of each other are one entry, which opens the newest one.

import { button, element } from "./element.js";
import { ago, t } from "./words.js";

export class Talks {
  // Calls `on.open(id)` for a chosen conversation, `on.gone(id)` for a deleted one, and `on.fault(message)`.
  // `user` is the name of the reader, a superuser who may also list the conversations of all users; else "".
  constructor(api, root, on, user = "") {
    this.user = user;
    this.family = new Set(); // forks of the open one
    this.everyone = root.getElementById("everyone");
    this.everyone?.addEventListener("change", () => this.show(this.current));
    addEventListener("focus", () => this.list.querySelector("form") ?? this.show(this.current)); // others come from other tabs
    this.api = api;
    this.on = on;
    this.list = root.getElementById("session-list");
    this.more = root.getElementById("more-sessions");
    this.find = root.getElementById("find");
    this.find.oninput = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.show(this.current), 200);
    };
    this.more.onclick = () => this.#load(`sessions/${new URL(this.next, this.api.base).search}`); // as Client.all()
  }

  // List the newest conversations; `current` is the open one.
  // `family` has the forks of it, where it has any.
  show(current, family = this.family.has(current) ? this.family : new Set()) {
    this.current = current;
    this.family = family;
    const search = this.find.value.trim();
    const filters = { ordering: "-updated_at", ...(!this.everyone?.checked && { mine: true }), ...(search && { search }) };
    return this.#load(`sessions/?${new URLSearchParams(filters)}`, true);
  }

  async #load(page, replace = false) {
    const mine = (this.loads = (this.loads ?? 0) + 1);
    try {
      const found = await this.api.get(page);
      if (mine !== this.loads) return; // a later search was faster
      // A link that is replaced between press and release is not clicked: leave a list that is up to date.
      const rows = JSON.stringify([found.results, this.current, [...this.family]]);
      if (replace && rows === this.rows) return;
      const items = found.results.map((row) => this.#item(row));
      if (replace) {
        this.rows = rows;
        this.list.replaceChildren(...items);
      } else this.list.append(...items);
      this.next = found.next;
      this.more.hidden = !found.next;
    } catch (error) {
      this.on.fault(error.message);
    }
  }

  #item(row) {
    const item = element("li");
    const link = element("a", "talk");
    const isCurrent = row.id === this.current || this.family.has(row.id);
    const when = element("time", "", ago(row.updated_at));
    when.dateTime = row.updated_at;
    when.title = new Date(row.updated_at).toLocaleString();
    const title = row.title.replace(/\*\*|`|^#+ /g, ""); // of a message with markdown
    link.append(element("span", "", title || t("Untitled conversation")), when);
    if (this.user && row.owner !== this.user) when.append(` · ${row.owner ?? t("the system")}`);
    link.href = new URL(`ui/chat/${row.id}/`, this.api.base);
    if (isCurrent) link.setAttribute("aria-current", "page");
    link.onclick = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      this.on.open(row.id);
    };
    item.append(link);
    if (isCurrent) item.append(this.#actions(row, item));
    return item;
  }

  // Forks of a conversation are renamed and deleted with it.
  #each(row, call) {
    return Promise.all([...new Set([row.id, ...this.family])].map((id) => call(`sessions/${id}/`)));
  }

  #actions(row, item) {
    const box = element("div", "actions");
    const remove = button(t("Delete…"), () => this.#confirm(row, box), "quiet danger");
    box.append(button(t("Rename…"), () => this.#rename(row, item)), remove);
    return box;
  }

  #rename(row, item) {
    const form = element("form", "actions");
    const title = element("input");
    title.value = row.title;
    title.maxLength = 200;
    title.setAttribute("aria-label", t("Title"));
    form.append(title, element("button", "primary", t("Save")));
    form.onsubmit = (event) => {
      event.preventDefault();
      this.#change(() => this.#each(row, (path) => this.api.patch(path, { title: title.value.trim() })));
    };
    form.onkeydown = (event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.preventDefault();
      this.show(this.current);
    };
    this.rows = "";
    item.replaceChildren(form);
    title.focus();
  }

  #confirm(row, box) {
    const remove = () => this.#change(() => this.#each(row, this.api.delete), () => this.on.gone(row.id));
    const sure = button(t("Delete this conversation"), remove, "danger");
    this.rows = "";
    box.replaceChildren(sure, button(t("Keep it"), () => this.show(this.current)));
    sure.focus();
  }

  async #change(call, then = () => {}) {
    try {
      await call();
      then();
    } catch (error) {
      this.on.fault(error.message);
    }
    this.show(this.current);
  }
}
