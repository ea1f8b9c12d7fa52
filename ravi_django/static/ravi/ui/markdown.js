// Markdown of a model, as elements. Raw HTML in it is shown as text. DOMPurify lets through the tags below alone: a text
// never looks like a card of the chat, and never fetches a picture (its address could carry a secret to another host).

import { copyButton, element } from "./element.js";
import { Marked } from "./vendor/marked.js";
import purify from "./vendor/purify.js";
import { t } from "./words.js";

const MOST = 100_000; // characters; a longer text is plain until the reader asks for its format
const LONGEST = 50; // ms of one parse of a long text; a slower one is plain from then on
const SAFE = {
  ALLOWED_TAGS: "p h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong del a br hr table thead tbody tr th td".split(" "),
  ALLOWED_ATTR: ["href", "title", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|\/(?![/\\]))/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const marked = new Marked({
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escaped(text.trim())}</p>` : escaped(text)),
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped([text, hostOf(href)].filter(Boolean).join(" · "))}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A") return;
  node.setAttribute("rel", "noopener noreferrer nofollow");
  node.setAttribute("target", "_blank");
});

// One text that grows. It is painted once a frame of the screen, and only its last block is parsed again.
export class Prose {
  constructor() {
    this.root = element("div", "said prose");
    this.text = "";
    this.#restart();
  }

  append(text) {
    this.text += text.replaceAll("\r", "");
    this.#soon();
  }

  // The whole text. What is painted then equals one parse of it.
  set(text) {
    this.text = text.replaceAll("\r", "");
    this.whole = true;
    this.#soon();
  }

  clear() {
    this.text = "";
    this.#restart();
    this.#soon();
  }

  #restart() {
    this.parsed = 0; // characters of finished blocks
    this.fixed = 0; // their nodes
    this.whole = this.plain = false;
  }

  #soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#paint();
    });
  }

  #paint() {
    if (this.plain || (this.text.length > MOST && !this.asked)) return this.#paintPlain();
    if (this.whole) this.parsed = this.fixed = 0;
    const begun = performance.now();
    const tokens = marked.lexer(this.text.slice(this.parsed));
    const last = this.whole ? tokens.length : Math.max(tokens.findLastIndex((token) => token.type !== "space"), 0);
    const finished = elements(tokens.slice(0, last));
    if (this.whole && finished.innerHTML === this.root.innerHTML) return; // a reader's selection stays
    while (this.root.childNodes.length > this.fixed) this.root.lastChild.remove();
    this.root.append(...finished.childNodes);
    this.parsed += tokens.slice(0, last).reduce((sum, token) => sum + token.raw.length, 0);
    this.fixed = this.root.childNodes.length;
    this.root.append(...elements(tokens.slice(last)).childNodes);
    this.plain = this.text.length > 5000 && performance.now() - begun > LONGEST && !this.asked;
  }

  #paintPlain() {
    this.plain = true;
    const format = element("button", "quiet", t("Format"));
    format.onclick = () => {
      this.asked = this.whole = true;
      this.plain = false;
      this.#paint();
    };
    this.root.replaceChildren(element("div", "plain", this.text), format);
  }
}

function elements(tokens) {
  const made = element("div");
  made.append(purify.sanitize(marked.parser(tokens), SAFE));
  for (const table of made.querySelectorAll("table")) wrap(table, "table").tabIndex = 0;
  for (const code of made.querySelectorAll("pre")) {
    code.tabIndex = 0;
    wrap(code, "code").prepend(copyButton(() => code.textContent));
  }
  return made;
}

function wrap(node, className) {
  const box = element("div", className);
  node.replaceWith(box);
  box.append(node);
  return box;
}

function hostOf(address) {
  try {
    return new URL(address, location.href).host;
  } catch {
    return "";
  }
}

function escaped(text) {
  return text.replace(/[&<>"']/g, (found) => `&#${found.charCodeAt(0)};`);
}
