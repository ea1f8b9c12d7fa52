// The field for a message. Enter sends, Shift+Enter breaks the line. A draft is kept for each user and conversation in this
// browser. "/" in an empty field lists the starter prompts.

import { Attachments } from "./attachments.js";
import { element } from "./element.js";

const KEY = "ravi.drafts"; // {user, texts: {conversation: text}}

export class Composer {
  // Calls `on.send(text)`, `on.pick(prompt)` and `on.fault(message)`; `on.prompts()` are the buttons of the starter prompts on offer.
  constructor(root, api, user, on) {
    this.on = on;
    this.user = user;
    this.field = root.getElementById("text");
    this.list = root.getElementById("palette");
    this.stop = root.getElementById("cancel");
    this.submit = root.getElementById("send");
    this.how = root.getElementById("busy"); // what becomes of a message during an answer; null: the server rejects it
    this.talk = "";
    this.files = new Attachments(root, api, { files: () => this.#buttons(), fault: on.fault });
    if (kept()?.user !== user) localStorage.removeItem(KEY);
    root.getElementById("composer").onsubmit = (event) => {
      event.preventDefault();
      const text = this.field.value.trim();
      if ((text || this.files.items.length) && !this.files.uploading) on.send(text);
    };
    this.field.oninput = () => this.#changed();
    this.field.onkeydown = (event) => this.#key(event);
    this.field.onblur = () => this.#close();
  }

  // Show the draft of a conversation; "" is the one that has not begun.
  open(talk) {
    if (talk !== this.talk) this.files.drop();
    this.talk = talk;
    this.field.value = this.#drafts()[talk] ?? "";
    this.#buttons();
    if (!matchMedia("(pointer: coarse)").matches && (document.activeElement?.matches("body, ravi-chat, ravi-panel") ?? true)) this.field.focus();
  }

  // The server has the message of a conversation, which may not be the open one any more.
  sent(text, blocks, talk) {
    if (talk !== this.talk) return this.#drafts()[talk]?.trim() === text && this.#keep("", talk);
    if (this.field.value.trim() === text) this.field.value = "";
    this.files.drop(blocks);
    this.#changed();
  }

  unsent(text, talk) {
    if (talk === this.talk) this.set(this.field.value || text);
    else this.#keep(this.#drafts()[talk] || text, talk);
  }

  set(text) {
    this.field.value = text;
    this.#changed();
  }

  busy(on) {
    this.working = on;
    this.stop.disabled = false;
    this.#buttons();
  }

  #buttons() {
    this.stop.hidden = !this.working;
    this.submit.hidden = this.working && !this.field.value.trim() && !this.files.items.length;
    if (this.how) this.how.hidden = !this.working || this.submit.hidden;
  }

  #changed() {
    this.#keep(this.field.value, this.talk);
    this.#buttons();
    this.#open();
  }

  #keep(text, talk) {
    const texts = this.#drafts();
    if (text) texts[talk] = text;
    else delete texts[talk];
    try {
      localStorage.setItem(KEY, JSON.stringify({ user: this.user, texts }));
    } catch {
      // a full or forbidden storage keeps no drafts
    }
  }

  #drafts() {
    const found = kept();
    return found?.user === this.user ? found.texts : {};
  }

  #key(event) {
    if (!this.list.hidden && this.#chosen(event)) return event.preventDefault();
    // 229: Safari's Enter that ends a composition.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    this.field.form.requestSubmit();
  }

  // --- the palette

  #open() {
    const typed = this.field.value;
    const words = typed.slice(1).toLowerCase();
    const fits = typed.startsWith("/") ? this.on.prompts().filter((prompt) => prompt.textContent.toLowerCase().includes(words)) : [];
    this.list.replaceChildren(...fits.map((prompt, at) => this.#option(prompt, at)));
    this.list.hidden = !fits.length;
    this.#mark(0);
  }

  #option(prompt, at) {
    const option = element("li", "", prompt.textContent);
    option.id = `prompt-${at}`;
    option.setAttribute("role", "option");
    option.onpointerdown = (event) => {
      event.preventDefault(); // the focus stays in the field
      this.#pick(prompt);
    };
    option.prompt = prompt;
    return option;
  }

  #mark(at) {
    const options = [...this.list.children];
    this.at = (at + options.length) % (options.length || 1);
    options.forEach((option, place) => option.setAttribute("aria-selected", String(place === this.at)));
    options[this.at]?.scrollIntoView({ block: "nearest" });
    if (options.length) this.field.setAttribute("aria-activedescendant", options[this.at].id);
    else this.field.removeAttribute("aria-activedescendant");
  }

  // Whether the key was for the palette.
  #chosen(event) {
    if (event.key === "ArrowDown") this.#mark(this.at + 1);
    else if (event.key === "ArrowUp") this.#mark(this.at - 1);
    else if (event.key === "Enter" || event.key === "Tab") this.#pick(this.list.children[this.at].prompt);
    else if (event.key === "Escape") this.#close();
    else return false;
    return true;
  }

  #pick(prompt) {
    this.on.pick(prompt);
    this.set(prompt.textContent);
    this.#close();
  }

  #close() {
    this.list.hidden = true;
    this.field.removeAttribute("aria-activedescendant");
  }
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY));
  } catch {
    return null;
  }
}
