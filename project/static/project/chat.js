// The chat page: a person, the demo's agents, their chats.

import { Api } from "./api.js";
import { element } from "./element.js";
import { RunStream } from "./stream.js";
import { Answer, blocksOf, textOf } from "./transcript.js";

const api = new Api(document.querySelector("script[data-api]").dataset.api);
const $ = (id) => document.getElementById(id);
const ENDED = new Set(["completed", "failed", "cancelled"]);
const WORDS = {
  queued: "Waiting for the answer before it", pending: "Waiting for a worker", running: "Thinking",
  suspended: "Waiting", blocked: "Blocked: an operator has to look", completed: "Done", failed: "Failed", cancelled: "Stopped",
};

let session = null; // id of the open chat; null for one that has not begun
let live = null; // { run, stream } while an answer is under way
let opened = 0; // rises with each opening, so that a slow answer for a former chat is dropped

// --- sending and following

async function send(text) {
  busy(true);
  status("Sending");
  $("usage").textContent = "";
  try {
    const run = await api.post("runs/", { agent: $("agent").value, input: text, ...(session && { session }) });
    sessionStorage.setItem(run.id, text); // the chat's messages have it only when the answer is there
    $("text").value = "";
    $("welcome").hidden = true;
    show(element("div", "user", text));
    if (run.session !== session) {
      session = run.session;
      history.replaceState(null, "", `#${session}`);
    }
    follow(run);
    listSessions();
  } catch (error) {
    busy(false);
    status(error.message, "fault");
  }
}

function follow(run) {
  const answer = new Answer(run.agent, api);
  show(answer.root);
  answer.live(true);
  busy(true);
  status(WORDS[run.status]);
  const stream = new RunStream(run.id, {
    frame: (frame) => {
      const stick = nearBottom();
      answer.take(frame);
      const word = stepInWords(frame);
      if (word) status(word);
      if (stick) toBottom();
    },
    state: (state) => (state === "lost" ? status("Connection lost, reconnecting", "fault") : status(WORDS.running)),
    end: (problem) => finish(run.id, answer, problem),
  });
  live = { run: run.id, stream };
}

async function finish(id, answer, problem) {
  live = null;
  answer.live(false);
  busy(false);
  if (problem) return status(problem, "fault");
  try {
    const run = await api.get(`runs/${id}/`);
    status(WORDS[run.status] ?? run.status, run.status === "failed" ? "fault" : "");
    if (run.error && run.status === "failed") answer.fault(run.error.message);
    if (run.status === "cancelled") answer.note("Stopped.");
    $("usage").textContent = usageInWords(run);
    sessionStorage.removeItem(id);
    const next = activeOf(await runsOf(session)); // sent from another tab, and waiting for this one
    if (next && !live) open(session);
  } catch (error) {
    status(error.message, "fault");
  }
}

async function cancel() {
  if (!live) return;
  $("cancel").disabled = true;
  status("Stopping");
  try {
    await api.post(`runs/${live.run}/cancel/`);
  } catch (error) {
    status(error.message, "fault");
  }
}

function stepInWords(frame) {
  if (frame.type === "text.delta") return "Answering";
  if (frame.type === "reasoning.delta") return "Thinking";
  if (frame.type !== "progress") return "";
  const { step, content } = frame;
  return { started: "Thinking", thinking: "Thinking", tool_call: `Calling ${content?.tool}`, tool_result: "Thinking", paused: "Waiting" }[step] ?? "";
}

function usageInWords(run) {
  const { input_tokens, output_tokens, cost } = run.usage;
  const seconds = (Date.parse(run.finished_at) - Date.parse(run.created_at)) / 1000;
  const price = cost === null ? "cost unknown" : cost === 0 ? "no cost" : `$${cost.toPrecision(2)}`;
  return [`${input_tokens} tokens in, ${output_tokens} out`, price, Number.isFinite(seconds) ? `${seconds.toFixed(1)} s` : ""].filter(Boolean).join(" · ");
}

// --- the chats at the side

let olderSessions = null;

async function listSessions(page = "sessions/") {
  let found;
  try {
    found = await api.get(page);
  } catch (error) {
    return status(error.message, "fault");
  }
  const items = found.results.map(sessionItem);
  if (page === "sessions/") $("session-list").replaceChildren(...items);
  else $("session-list").append(...items);
  olderSessions = found.next;
  $("more-sessions").hidden = !olderSessions;
}

function sessionItem(row) {
  const button = element("button");
  const when = element("time", "", new Date(row.created_at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }));
  when.dateTime = row.created_at;
  button.append(element("span", "", row.title || "Untitled chat"), when);
  if (row.id === session) button.setAttribute("aria-current", "true");
  button.onclick = () => open(row.id);
  const item = element("li");
  item.append(button);
  return item;
}

async function open(id) {
  const mine = ++opened;
  live?.stream.close();
  live = null;
  session = id;
  history.replaceState(null, "", id ? `#${id}` : location.pathname);
  showSessions(false);
  $("transcript").replaceChildren();
  $("welcome").hidden = Boolean(id);
  $("usage").textContent = "";
  status("");
  busy(false);
  $("text").focus();
  listSessions();
  if (!id) return;
  try {
    const [messages, runs] = await Promise.all([allMessages(id), runsOf(id)]);
    if (mine !== opened) return;
    const active = activeOf(runs);
    const last = (active ?? runs[0])?.agent;
    if ([...$("agent").options].some((option) => option.value === last)) $("agent").value = last;
    showMessages(messages, active);
    if (active) follow(active);
    toBottom();
  } catch (error) {
    if (mine === opened) status(error.status === 404 ? "There is no such chat." : error.message, "fault");
  }
}

async function allMessages(id) {
  const rows = [];
  for (let page = `sessions/${id}/messages/?limit=200`; page; ) {
    const found = await api.get(page);
    rows.push(...found.results);
    page = found.next;
  }
  return rows;
}

async function runsOf(id) {
  const { results } = await api.get(`runs/?session=${id}`);
  return results.filter((run) => run.session === id); // newest first
}

function activeOf(runs) {
  return runs.findLast((run) => !ENDED.has(run.status));
}

function showMessages(rows, active) {
  let answer = null;
  let asked = false;
  for (const row of rows) {
    const blocks = blocksOf(row.content);
    if (row.role === "user") {
      show(element("div", "user", textOf(blocks)));
      answer = null;
      asked ||= row.run === active?.id;
    } else if (row.run !== active?.id) {
      if (!answer) show((answer = new Answer($("agent").value, api)).root);
      answer.message(row.role, blocks);
    }
  }
  const said = active && !asked && sessionStorage.getItem(active.id);
  if (said) show(element("div", "user", said));
}

// --- small things

function show(node) {
  $("transcript").append(node);
  toBottom();
}

function nearBottom() {
  const { scrollHeight, scrollTop, clientHeight } = $("scroller");
  return scrollHeight - scrollTop - clientHeight < 80;
}

function toBottom() {
  $("scroller").scrollTop = $("scroller").scrollHeight;
}

function status(text, kind = "") {
  $("status").textContent = text;
  $("status").dataset.kind = kind;
}

function busy(on) {
  $("send").hidden = on;
  $("cancel").hidden = !on;
  $("cancel").disabled = false;
}

function showSessions(on) {
  $("sessions").classList.toggle("open", on);
  $("open-sessions").setAttribute("aria-expanded", String(on));
}

$("composer").onsubmit = (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text && $("cancel").hidden) send(text);
};
$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
};
for (const starter of document.querySelectorAll(".starters button")) {
  starter.onclick = () => {
    if (starter.dataset.agent) $("agent").value = starter.dataset.agent;
    send(starter.textContent);
  };
}
$("agent").onchange = () => open(null); // a chat is with one of them
$("cancel").onclick = cancel;
$("new-chat").onclick = () => open(null);
$("more-sessions").onclick = () => listSessions(olderSessions);
$("open-sessions").onclick = () => showSessions(!$("sessions").classList.contains("open"));
onkeydown = (event) => {
  if (event.key === "Escape") showSessions(false);
};
onhashchange = () => open(location.hash.slice(1) || null);
open(location.hash.slice(1) || null);
