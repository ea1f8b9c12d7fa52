// The run page: the server has rendered it. Here it follows the run, opens entries in place, and acts by the REST API or, for operators, below `ui/runs/`.

import { Client, newKey } from "../ravi-client.js";
import { jsonOf, RequestCard } from "./requests.js";
import { setWords, stepInWords, t } from "./words.js";

const PAUSE = 700; // ms at least between two looks at the server
const GROW = 5000; // ms: the bars of what runs grow
const QUIET = new Set(["text.delta", "reasoning.delta", "arguments.delta"]); // frames that change no row

const STATES = { lost: "Reconnecting… The run continues.", polled: "This server has no live connection. The page asks for news repeatedly." };

document.getElementById("unloaded")?.remove();
const page = document.getElementById("viewer");
const $ = (id) => document.getElementById(id);
setWords(JSON.parse($("words").textContent));
const api = new Client(page.dataset.api, { ...page.dataset, t });
let following = false;
let due = 0;
let [doing, agent, since] = ["", "", 0]; // what the run does now, and from when
let looking = false;
let shown = location.search; // of the lanes
let broken = ""; // why the last look failed
let pause = PAUSE;
let tag = ""; // of the page that is shown
let rows = 0; // lanes that are loaded, of those from the first

// --- the server's page again

async function read(address, known = "") {
  const response = await fetch(address, { headers: { Accept: "text/html", "If-None-Match": known } });
  if (response.status === 304) return null;
  if (response.redirected) throw new Error(t("You are logged out."));
  if (!response.ok) throw new Error(t("The server answered with status %s.", response.status));
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  return Object.assign(fresh, { tag: response.headers.get("ETag") });
}

function addressOf(changes) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) value ? url.searchParams.set(name, value) : url.searchParams.delete(name);
  return url;
}

function lanes() {
  return page.querySelectorAll("#lanes > .lane:not(.axis, #lane-workers)");
}

// Look once, soon; further calls until then change nothing.
function look(soon = pause) {
  due ||= setTimeout(refresh, soon);
}

async function refresh() {
  due = 0;
  if (looking) return look();
  looking = true;
  const begun = performance.now();
  const here = location.search;
  try {
    const fresh = await read(addressOf({ entry: "", from: "", upto: rows > 0 ? String(rows) : "" }), tag);
    if (fresh && here === location.search) show(fresh);
    follow();
    if ($("banner").textContent === broken) say("");
  } catch (error) {
    say((broken = error.message));
  } finally {
    looking = false;
    pause = Math.max(PAUSE, 3 * (performance.now() - begun)); // a long journal takes the server longer
  }
}

function show(fresh) {
  const before = lanes().length;
  tag = fresh.tag;
  morph($("lanes"), fresh.getElementById("lanes"));
  $("more").replaceWith(fresh.getElementById("more"));
  const head = fresh.getElementById("head");
  patch($("head"), head);
  $("head").dataset.live = head.dataset.live;
  document.title = fresh.title;
  tell();
  asks(fresh.getElementById("asks"));
  mark();
  const news = lanes().length - before;
  if (news > 0 && shown === location.search) $("more").prepend(`${t("New rows: %s", news)} · `);
  shown = location.search;
}

// Replace what has changed, and nothing around it: a button keeps the focus, a fault stays.
function patch(old, fresh) {
  if (old.isEqualNode(fresh) || old.id === "fault" || old.id === "now") return;
  if (!old.children.length || old.children.length !== fresh.children.length) {
    return old.id === "head" ? old.replaceChildren(...fresh.childNodes) : old.replaceWith(fresh);
  }
  const pairs = [...old.children].map((child, place) => [child, fresh.children[place]]);
  for (const [child, news] of pairs) patch(child, news);
}

// Bring the children of `old` to those of `fresh`, by their ids: a row that stays is the same element.
function morph(old, fresh) {
  const known = new Map([...old.children].map((row) => [row.id, row]));
  let at = old.firstElementChild;
  for (const row of [...fresh.children]) {
    const mine = known.get(row.id);
    known.delete(row.id);
    if (!mine) {
      old.insertBefore(row, at);
      continue;
    }
    if (mine.innerHTML !== row.innerHTML) {
      const focused = mine.contains(document.activeElement);
      mine.className = row.className;
      mine.replaceChildren(...row.childNodes);
      if (focused) mine.querySelector("a")?.focus();
    }
    if (mine === at) at = at.nextElementSibling;
    else old.insertBefore(mine, at);
  }
  for (const row of known.values()) row.remove();
}

// --- requests to people

function asks(fresh) {
  const open = new Set([...fresh.children].map((one) => one.dataset.request));
  for (const one of [...$("asks").children]) {
    const isDecidedHere = one.matches(".request") && !one.querySelector(".decide button:enabled"); // or being sent
    if (!open.has(one.dataset.request) && !isDecidedHere) one.remove();
  }
  for (const one of [...fresh.children]) {
    if (![...$("asks").children].some((other) => other.dataset.request === one.dataset.request)) $("asks").append(one);
  }
  for (const one of $("asks").querySelectorAll(".waits:not([data-looked])")) card(one);
}

async function card(place) {
  place.dataset.looked = "yes";
  try {
    const row = await api.get(`requests/${place.dataset.request}/`);
    if (row.may_answer) place.replaceWith(new RequestCard(api, row, page.dataset.inbox).root);
  } catch {
    // not theirs any more: the server's words stand
  }
}

// --- live

const say = (text) => fault($("banner"), text);

function live() {
  return $("head").dataset.live === "yes";
}

async function follow() {
  if (following || !live() || !("follows" in page.dataset)) return;
  following = true;
  try {
    for await (const frame of api.events(page.dataset.run, { state: (state) => say(t((page.dataset.sockets && STATES[state]) || "")) })) {
      if (!QUIET.has(frame.type)) look();
      now(frame);
    }
    say("");
    setTimeout(() => (following = false), PAUSE); // a retry begins a new stream
  } catch (error) {
    say(error.message);
  }
  look();
}

// What the run does now, in words, and for how long.
function now(frame) {
  const words = stepInWords(frame);
  if (words !== doing) since = Date.now();
  doing = words;
  agent = frame.agent;
}

function tell() {
  const seconds = Math.round((Date.now() - since) / 1000);
  $("now").hidden = !doing || !live();
  $("now").textContent = [agent, doing, seconds > 1 ? `${seconds} s` : ""].filter(Boolean).join(" · ");
}

// --- one entry

function mark() {
  const entry = new URLSearchParams(location.search).get("entry");
  for (const row of page.querySelectorAll("#lanes > [aria-current]")) row.removeAttribute("aria-current");
  if (entry) $(`e-${entry}`)?.setAttribute("aria-current", "true");
}

async function open(entry) {
  mark();
  const url = addressOf({ part: entry ? "detail" : "", entry });
  try {
    const found = entry ? await read(url) : null;
    if (found) $("detail").replaceChildren(...found.body.childNodes);
    if (found && matchMedia("(max-width: 62rem)").matches) $("detail").scrollIntoView();
  } catch (error) {
    fault($("fault"), error.message);
  }
}

// --- actions

function fault(place, text) {
  place.hidden = !text;
  place.textContent = text;
}

async function act(name, run, body, place, button) {
  fault(place, "");
  button.disabled = true;
  try {
    const answer = await api.post(`${page.dataset.acts}/${run}/${name}/`, body);
    if (name === "fork") return location.assign(new URL(`ui/runs/${answer.id}/`, api.base));
    look(0);
    return true;
  } catch (error) {
    fault(place, error.message);
    return false;
  } finally {
    button.disabled = false;
  }
}

function bodyOf(name, form) {
  const given = Object.fromEntries(new FormData(form));
  if (name === "cancel") return given.reason.trim() ? { reason: given.reason.trim() } : {};
  if (name === "signals") return { name: given.name, payload: given.payload.trim() ? jsonOf(given.payload) : null, idempotency_key: newKey() };
  return { after_seq: Number(form.dataset.after), idempotency_key: newKey() };
}

page.addEventListener("click", (event) => {
  const plain = !(event.metaKey || event.ctrlKey || event.shiftKey || event.button);
  const link = event.target.closest("a[data-entry]");
  const button = event.target.closest("button");
  if (link && plain) {
    event.preventDefault();
    history.pushState(null, "", addressOf({ entry: link.dataset.entry }));
    open(link.dataset.entry);
  } else if (event.target.id === "next" && plain) {
    event.preventDefault();
    more();
  } else if (button?.dataset.act) {
    const dialog = $(`act-${button.dataset.act}`);
    if (!dialog) return act(button.dataset.act, page.dataset.run, {}, $("fault"), button);
    Object.assign(dialog.querySelector("form").dataset, { of: button.dataset.of ?? page.dataset.run, after: button.dataset.after ?? "" });
    fault(dialog.querySelector(".fault"), "");
    dialog.showModal();
  } else if (button && "copy" in button.dataset) {
    const texts = [...(button.closest(".sent")?.querySelectorAll("[data-json]") ?? $("detail").querySelectorAll("[data-json]:not(.sent *)"))].map((one) => one.dataset.json);
    navigator.clipboard?.writeText(texts.join("\n")).then(() => (button.textContent = t("Copied")));
  }
});

for (const dialog of page.querySelectorAll("dialog")) {
  dialog.querySelector("form").onsubmit = async (event) => {
    if (event.submitter?.value !== "send") return;
    event.preventDefault();
    const name = dialog.id.replace("act-", "");
    const done = await act(name, event.target.dataset.of, bodyOf(name, event.target), dialog.querySelector(".fault"), event.submitter);
    if (done) dialog.close();
  };
}

// --- rows, search, keyboard

async function more() {
  const link = $("next");
  if (!link || link.dataset.busy) return;
  link.dataset.busy = "yes";
  try {
    const fresh = await read(link.href);
    for (const row of fresh.querySelectorAll("#lanes > .lane:not(.axis, #lane-workers)")) $("lanes").append(row);
    $("more").replaceWith(fresh.getElementById("more"));
    rows = lanes().length;
    mark();
    watch();
  } catch (error) {
    delete link.dataset.busy;
    fault($("fault"), error.message);
  }
}

const seen = new IntersectionObserver((found) => found.some((one) => one.isIntersecting) && more(), { rootMargin: "400px" });

function watch() {
  seen.disconnect();
  if ($("next")) seen.observe($("next"));
}

let typed = 0;
$("find").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => {
    rows = 0;
    history.replaceState(null, "", addressOf({ from: "", upto: "", q: "", kind: "", time: "", ...Object.fromEntries(new FormData($("find"))) }));
    refresh().then(watch);
  }, 250);
});
$("find").querySelector("button").hidden = true;

$("lanes").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const links = [...$("lanes").querySelectorAll(".what a")];
  const next = links[links.indexOf(document.activeElement) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
});

addEventListener("popstate", () => open(new URLSearchParams(location.search).get("entry") ?? ""));

asks($("asks").cloneNode(true));
mark();
watch();
follow();
setInterval(tell, 1000);
setInterval(() => live() && !document.hidden && look(), GROW);
