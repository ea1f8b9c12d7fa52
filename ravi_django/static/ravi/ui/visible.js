// A text with its control and format characters as JSON writes them, \u202e: those that turn a line around, join, hide
// or break. A new line and a tab stay. As kernel/visible.py does it.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u{e0100}-\u{e01ef}]/gu;

export function visible(text) {
  return String(text).replace(HIDDEN, (found) => (found === "\n" || found === "\t" ? found : escaped(found)));
}

function escaped(found) {
  return Array.from({ length: found.length }, (_, at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join("");
}
