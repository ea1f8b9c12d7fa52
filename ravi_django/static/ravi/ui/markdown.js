// Markdown of a model, as elements. Raw HTML in it is shown as text. DOMPurify lets through the tags below alone: a text
// never looks like a card of the chat, and never fetches a picture (its address could carry a secret to another host).

import { copyButton, element } from "./element.js";
import { LONGEST, sliceAt, TOKENS } from "./slices.js";
import { Marked } from "./vendor/marked.js";
import purify from "./vendor/purify.js";
import { t } from "./words.js";

const MOST = 100_000; // characters; a longer text is plain until the reader asks for its format
const GROWING = TOKENS / 4; // of a block that grows, and is parsed again in each frame; a longer one is plain until its end
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

const waiting = new Set(); // texts to paint
let frame = null;

export const isPainting = () => waiting.size > 0;

function soon(prose) {
  waiting.add(prose);
  frame ??= requestAnimationFrame(paint);
}

// Paint some TOKENS of all texts in a frame of the screen, so that the browser has time for its user between two.
function paint() {
  frame = null;
  let left = TOKENS;
  for (const prose of waiting) {
    if (left <= 0) break;
    waiting.delete(prose);
    left -= prose.paint();
  }
  if (waiting.size) frame ??= requestAnimationFrame(paint);
}

// One text that grows. It is parsed in slices. In a frame of the screen only its last block is parsed again.
export class Prose {
  constructor() {
    this.root = element("div", "said prose");
    this.text = "";
    this.#restart();
  }

  append(text) {
    if (this.whole) this.#restart();
    this.text += text.replaceAll("\r", "");
    soon(this);
  }

  // The whole text. What is painted then does not depend on how it grew.
  set(text) {
    this.text = text.replaceAll("\r", "");
    this.#restart(true);
    soon(this);
  }

  clear() {
    this.text = "";
    this.#restart();
    soon(this);
  }

  #restart(whole = false) {
    this.parsed = this.fixed = 0; // characters of finished blocks, and their nodes
    this.painted = this.pieces = 0; // of the plain text behind them
    this.whole = whole;
  }

  // Paint the next slice, and return about how many tokens it cost.
  paint() {
    const isLong = this.text.length > MOST && !this.asked;
    const { end, tokens, plain } = isLong ? { end: this.text.length, plain: true } : sliceAt(this.text, this.parsed);
    const isLast = end === this.text.length;
    const grows = isLast && !this.whole;
    const source = this.text.slice(this.parsed, end);
    const made = !plain && !(grows && tokens > GROWING) && formatted(source, grows);
    if (!made) return this.#paintPlain(end, grows, isLong);
    this.painted = this.pieces = 0;
    this.#put(made.nodes, isLast);
    this.fixed += grows ? made.fixed : made.nodes.length;
    this.parsed += grows ? made.length : source.length;
    return tokens;
  }

  // Paint the next part of a text that is not parsed.
  #paintPlain(end, grows, isLong) {
    const from = this.parsed + this.painted;
    const to = Math.min(end, from + LONGEST);
    const isLast = to === this.text.length;
    this.#put([element("div", "plain", this.text.slice(from, to)), ...(isLast && isLong ? [this.#format()] : [])], isLast);
    if (to < end || !grows) [this.painted, this.pieces] = [this.painted + to - from, this.pieces + 1];
    if (to === end && !grows) {
      [this.parsed, this.fixed] = [end, this.fixed + this.pieces];
      this.painted = this.pieces = 0;
    }
    return (to - from) / 3;
  }

  #format() {
    const format = element("button", "quiet", t("Format"));
    format.onclick = () => {
      this.asked = true;
      this.root.replaceChildren();
      this.set(this.text);
    };
    return format;
  }

  // Put these nodes behind the finished ones. Equal ones stay, and with them a reader's selection.
  #put(nodes, isLast) {
    const begin = this.fixed + this.pieces;
    nodes.forEach((node, index) => {
      const old = this.root.childNodes[begin + index];
      if (!old) this.root.append(node);
      else if (!old.isEqualNode(node)) old.replaceWith(node);
    });
    while (isLast && this.root.childNodes.length > begin + nodes.length) this.root.lastChild.remove();
    if (!isLast) soon(this);
  }
}

// The nodes of a slice; of one that grows also how many of them, and characters, are of finished blocks. null: plain.
function formatted(source, grows) {
  try {
    const tokens = marked.lexer(source);
    const last = grows ? Math.max(tokens.findLastIndex((token) => token.type !== "space"), 0) : tokens.length;
    const [finished, rest] = [tokens.slice(0, last), tokens.slice(last)].map((part) => [...elements(part).childNodes]);
    return { nodes: [...finished, ...rest], fixed: finished.length, length: tokens.slice(0, last).reduce((sum, token) => sum + token.raw.length, 0) };
  } catch {
    return null; // of the parser's recursion
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
