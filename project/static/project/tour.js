// The tour as a slim bar above the message: how many of its steps are done, and the next one. A step is done when one of its
// messages stands in a conversation. "Kill the worker" says at once what it did.

const root = document.querySelector("ravi-chat").shadowRoot;
const steps = [...root.querySelectorAll(".starters li")];
const KEY = "tour";
const seen = new Set(JSON.parse(localStorage.getItem(KEY) ?? "[]"));

function made(tag, className, text, parent) {
  return parent.appendChild(Object.assign(document.createElement(tag), { className, textContent: text }));
}

const bar = document.createElement("div");
bar.className = "tour column";
bar.setAttribute("role", "group");
bar.setAttribute("aria-label", "Tour");

function show() {
  for (const step of steps) step.classList.toggle("done", isDone(step));
  const next = steps.find((step) => !isDone(step));
  bar.hidden = seen.has("closed") || !root.getElementById("welcome").hidden;
  bar.replaceChildren();
  made("span", "count", `Tour: ${steps.filter(isDone).length} of ${steps.length} done`, bar);
  if (next) {
    const starter = next.querySelector("button");
    made("button", "quiet next", `Next: ${starter.textContent}`, bar).onclick = () => {
      root.getElementById("new-chat").click();
      starter.click();
    };
    bar.title = next.querySelector("span").textContent;
  }
  const close = made("button", "quiet close", "✕", bar);
  close.setAttribute("aria-label", "Close the tour");
  close.onclick = () => keep("closed");
  for (const one of bar.querySelectorAll("button")) one.type = "button";
}

function isDone(step) {
  return [...step.querySelectorAll("button")].some((starter) => seen.has(starter.textContent));
}

function keep(text) {
  seen.add(text);
  localStorage.setItem(KEY, JSON.stringify([...seen]));
  show();
}

if (steps.length) {
  root.getElementById("composer").prepend(bar);
  const prompts = new Set(steps.flatMap((step) => [...step.querySelectorAll("button")].map((starter) => starter.textContent)));
  new MutationObserver(() => {
    const said = [...root.querySelectorAll(".user")].map((message) => message.textContent);
    for (const text of said) if (prompts.has(text) && !seen.has(text)) keep(text);
  }).observe(root.getElementById("transcript"), { childList: true });
  new MutationObserver(show).observe(root.getElementById("welcome"), { attributes: true, attributeFilter: ["hidden"] });
  show();
}

document.getElementById("kill")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const response = await fetch(event.target.action, { method: "POST", body: new FormData(event.target) });
  const worker = response.headers.get("X-Worker");
  const status = root.getElementById("status");
  if (status) status.textContent = worker ? `Worker ${worker} was killed. Another takes over when its lease ends.` : "No worker is alive: the next one is starting.";
});
