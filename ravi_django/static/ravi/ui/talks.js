// The list of conversations: search, rename, delete. Each is a link, so that it opens in a new tab too.

import { button, element } from "./element.js";
import { t } from "./words.js";

export class Talks {
  // Calls `on.open(id)` for a chosen conversation, `on.gone(id)` for a deleted one, and `on.fault(message)`.
  constructor(api, root, on) {
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
  show(current) {
    this.current = current;
    const search = this.find.value.trim();
    return this.#load(`sessions/${search ? `?search=${encodeURIComponent(search)}` : ""}`, true);
  }

  async #load(page, replace = false) {
    const mine = (this.loads = (this.loads ?? 0) + 1);
    try {
      const found = await this.api.get(page);
      if (mine !== this.loads) return; // a later search was faster
      // A link that is replaced between press and release is not clicked: leave a list that is up to date.
      const rows = JSON.stringify([found.results, this.current]);
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
    const when = element("time", "", new Date(row.created_at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }));
    when.dateTime = row.created_at;
    link.append(element("span", "", row.title || t("Untitled conversation")), when);
    link.href = new URL(`ui/chat/${row.id}/`, this.api.base);
    if (row.id === this.current) link.setAttribute("aria-current", "page");
    link.onclick = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      this.on.open(row.id);
    };
    item.append(link);
    if (row.id === this.current) item.append(this.#actions(row, item));
    return item;
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
      this.#change(() => this.api.patch(`sessions/${row.id}/`, { title: title.value.trim() }));
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
    const remove = () => this.#change(() => this.api.delete(`sessions/${row.id}/`), () => this.on.gone(row.id));
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
