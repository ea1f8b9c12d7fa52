import { t } from "./words.js";

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function button(text, action, className = "quiet") {
  const made = element("button", className, text);
  made.type = "button";
  made.onclick = action;
  return made;
}

export function copyButton(text) {
  const copy = button(t("Copy"), async () => {
    await navigator.clipboard.writeText(text());
    copy.textContent = t("Copied");
    setTimeout(() => (copy.textContent = t("Copy")), 2000);
  });
  copy.hidden = !navigator.clipboard; // a page of plain http has none
  return copy;
}
