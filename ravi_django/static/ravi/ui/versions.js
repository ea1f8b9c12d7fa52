// The messages of a person with their versions: runs of forks of the conversation, each opened in the place of the others.

import { newKey } from "../ravi-client.js";
import { button, element } from "./element.js";
import { action } from "./foot.js";
import { said, textOf } from "./transcript.js";
import { t } from "./words.js";

export class Versions {
  // Calls `on.open(session, run, isNew)` for another version, and `on.fault(message)`.
  constructor(api, on) {
    this.api = api;
    this.on = on;
    this.of([]);
  }

  // Begin with a conversation's `branches`: lists of {run, session}, each of one message.
  of(branches) {
    this.branches = branches;
    this.bars = new Map(); // below messages, by run
  }

  get sessions() {
    return new Set(this.branches.flat().map((one) => one.session));
  }

  // The message that a run began with, and the bar below it. A message of a schedule says so.
  said(run, content, row = null) {
    const message = said(this.api, content);
    if (row?.metadata?.schedule) message.prepend(element("span", "about", t("From a schedule")));
    const bar = element("div", "message-bar");
    const versions = this.branches.find((those) => those.some((one) => one.run === run)) ?? [];
    if (versions.length) bar.append(this.#choice(versions, versions.findIndex((one) => one.run === run)));
    this.bars.set(run, bar);
    return [message, bar];
  }

  #choice(versions, place) {
    const group = element("span", "versions");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", t("Versions of this message"));
    const turn = (sign, label, to) => {
      const made = button(sign, () => this.on.open(to.session, to.run));
      made.setAttribute("aria-label", label);
      made.disabled = !to;
      return made;
    };
    const [before, after] = [versions[place - 1], versions[place + 1]];
    group.append(turn("‹", t("Version before"), before), element("span", "num", `${place + 1}/${versions.length}`), turn("›", t("Next version"), after));
    return group;
  }

  // Scroll to a run's message; false if it is not here.
  reveal(run) {
    const bar = this.bars.get(run);
    bar?.previousElementSibling.scrollIntoView();
    bar?.querySelector(".versions button:enabled")?.focus({ preventScroll: true });
    return Boolean(bar);
  }

  // The run has ended: its message can be edited, in its place. That makes a fork of the run that begins with the new text.
  ended(run) {
    const bar = this.bars.get(run.id);
    if (!bar || bar.querySelector(".edits")) return;
    bar.append(action(t("Edit…"), "quiet edits", this.on, async () => this.#edit(run, bar, (await this.api.get(`runs/${run.id}/`)).input)));
  }

  #edit(run, bar, input) {
    const message = bar.previousElementSibling;
    const form = element("div", "edit");
    const field = element("textarea");
    const key = newKey(); // a second press opens the same fork
    const close = () => {
      form.remove();
      message.hidden = bar.hidden = false;
    };
    const send = action(t("Send"), "primary", this.on, async () => {
      const text = field.value.trim();
      if (!text) return;
      const others = (input ?? []).filter((block) => block.type !== "text");
      const fork = await this.api.post(`runs/${run.id}/fork/`, { input: [...others, { type: "text", text }], idempotency_key: key });
      this.on.open(fork.session, fork.id, true);
    });
    field.value = textOf(input);
    field.setAttribute("aria-label", t("Message"));
    field.onkeydown = (event) => {
      if (event.key === "Escape") close();
      else if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      else send.click();
      event.preventDefault();
    };
    form.append(field, send, button(t("Cancel"), close));
    message.before(form);
    message.hidden = bar.hidden = true;
    field.focus();
  }
}
