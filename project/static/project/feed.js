// The feed page: the topics that a person follows, what they care about, and what their agent makes of the news.

import { Client } from "../ravi/ravi-client.js";
import { element } from "../ravi/ui/element.js";
import { itemRow, sourceOf } from "./feed_item.js";
import { SessionHints } from "./session.js";
import { visible } from "../ravi/ui/visible.js";

const { api: apiBase, page: pageBase, reader, user } = document.querySelector("script[data-api]").dataset;
const api = new Client(apiBase);
const page = new Client(pageBase);
const $ = (id) => document.getElementById(id);
const DIGESTS = [[0, "at once"], [60, "every minute"], [300, "every 5 min"], [3600, "every hour"]];
const GATHER = 120; // ms: of several hints one question is made
const ANYWAY = 30_000; // ms: asked so often without a hint

const shown = new Map(); // the ids on the page, and where they are
let newest = "";
let begun = false; // what comes from then on is told
let oldest = "";
let session = null; // that the reader works in
let hints = null;
let asking = false;
let again = false;

// --- items

async function look() {
  if (asking) return void (again = true);
  asking = true;
  try {
    const found = await page.get(newest ? `items/?after=${newest}` : "items/");
    if (found.user !== user) return void location.reload(); // somebody else has logged in, in this browser
    const first = !newest;
    take(found.items, { first: !begun });
    begun = true;
    listTopics(found.follows);
    if (first) older(found.more);
    else if (found.more && found.after !== newest) again = true; // a page of what has come meanwhile
    newest = found.after || newest;
    session = found.session;
    watch();
    fault("");
  } catch (error) {
    fault(problemOf(error));
    if (error.status === 401) unwatch();
  } finally {
    asking = false;
    if (again) setTimeout(look, GATHER);
    again = false;
  }
}

function take(items, { first = false } = {}) {
  const fresh = items.filter((item) => !shown.has(item.id)).sort((a, b) => (a.id < b.id ? -1 : 1)); // oldest first
  for (const item of fresh) {
    const row = itemRow(item);
    if (!first) row.classList.add("new");
    place(row, item.id);
  }
  const kept = fresh.filter((item) => item.kept);
  if (!first && kept.length) $("news").textContent = `${kept.length} new: ${visible(kept.at(-1).title)}`;
  $("empty").hidden = shown.size > 0;
}

function place(row, id) {
  const before = [...$("items").children].find((other) => other.dataset.id < id);
  row.dataset.id = id;
  $("items").insertBefore(row, before ?? null);
  shown.set(id, row);
  if (!oldest || id < oldest) oldest = id;
}

function older(more) {
  $("older").hidden = !more;
}

$("older").onclick = async () => {
  try {
    const found = await page.get(`items/?before=${oldest}`);
    take(found.items, { first: true });
    older(found.more);
  } catch (error) {
    fault(problemOf(error));
  }
};

// --- live

function watch() {
  if (hints?.session === session) return;
  hints?.close();
  let timer = 0;
  hints = new SessionHints(api, session, {
    hint: () => {
      timer ||= setTimeout(() => {
        timer = 0; // not put off by the next hint: a long burst of them is looked at all along
        look();
      }, GATHER);
    },
    state: (state) => (state === "live" ? connection("live", "Live") : connection("lost", "Connection lost, reconnecting")),
    refused: (problem) => connection("lost", problem),
  });
}

function unwatch() {
  hints?.close();
  hints = null; // after the next login there is another
  connection("lost", "Logged out");
}

function connection(state, words) {
  $("connection").dataset.state = state;
  $("connection").textContent = words;
}

function problemOf(error) {
  return error.status === 401 ? "You are logged out. Reload the page to log in." : error.message;
}

function fault(words) {
  $("fault").hidden = !words;
  $("fault").textContent = words;
}

// --- topics

let listed = "";

function listTopics(follows) {
  if (JSON.stringify(follows) === listed) return;
  listed = JSON.stringify(follows);
  const mine = new Map(follows.map((row) => [row.topic, row]));
  const known = JSON.parse($("known-topics").textContent);
  const others = [...mine.keys()].filter((topic) => !known.includes(topic)).sort();
  const kept = document.activeElement?.id; // the list is made anew; who is in it with the keyboard stays there
  $("topics").replaceChildren(...[...known, ...others].map((topic) => topicRow(topic, mine.get(topic))));
  if (kept) $(kept)?.focus();
}

function topicRow(topic, follow) {
  const row = element("li", follow ? "followed" : "");
  const name = sourceOf(topic);
  row.append(element("span", "name", name));
  if (follow) row.append(digestChoice(topic, name, follow));
  const button = element("button", "", follow ? "Following" : "Follow");
  button.id = `follow-${topic}`;
  button.setAttribute("aria-pressed", String(Boolean(follow)));
  button.setAttribute("aria-label", follow ? `Following ${name}; press to stop` : `Follow ${name}`);
  button.onclick = () => change(row, () => (follow ? end(follow.ids) : api.post("follows/", { agent: reader, topic })));
  row.append(button);
  return row;
}

function digestChoice(topic, name, follow) {
  const select = element("select");
  select.id = `every-${topic}`;
  select.setAttribute("aria-label", `How often ${name} is delivered`);
  const choices = DIGESTS.some(([seconds]) => seconds === follow.every_s) ? DIGESTS : [...DIGESTS, [follow.every_s, `every ${follow.every_s} s`]];
  for (const [seconds, words] of choices) select.append(new Option(words, seconds, false, seconds === follow.every_s));
  select.onchange = () => change(select.parentElement, () => deliver(topic, follow, Number(select.value)));
  return select;
}

// A topic may have several follows, some of one conversation alone: of them one is left.
async function deliver(topic, follow, everyS) {
  const { id } = await api.post("follows/", { agent: reader, topic, every_s: everyS });
  await end(follow.ids.filter((other) => other !== id));
}

async function end(ids) {
  for (const id of ids) {
    await api.delete(`follows/${id}/`).catch((error) => {
      if (error.status !== 404) throw error; // ended elsewhere
    });
  }
}

async function change(row, call) {
  for (const control of row.querySelectorAll("button, select")) control.setAttribute("aria-busy", "true");
  let problem = "";
  try {
    await call();
  } catch (error) {
    problem = problemOf(error);
  }
  listed = "";
  await look();
  if (problem) fault(problem);
}

// --- what is written

function told(id, words, kind = "") {
  $(id).textContent = words;
  $(id).dataset.kind = kind;
}

$("preferences-form").onsubmit = async (event) => {
  event.preventDefault();
  told("preferences-status", "Saving");
  try {
    await page.post("preferences/", { text: $("preferences").value.trim() });
    told("preferences-status", "Saved: for what comes from now on");
  } catch (error) {
    told("preferences-status", problemOf(error), "fault");
  }
};

$("note-form").onsubmit = async (event) => {
  event.preventDefault();
  const text = $("note").value.trim();
  if (!text) return;
  try {
    const { followers } = await api.post(`topics/${$("note-topic").value}/emit/`, { text });
    told("note-status", `Published to ${followers} ${followers === 1 ? "follower" : "followers"}`);
    $("note").value = "";
  } catch (error) {
    told("note-status", problemOf(error), "fault");
  }
};

// --- a narrow window

$("open-side").onclick = () => showSide(!$("side").classList.contains("open"));
onkeydown = (event) => {
  if (event.key === "Escape") showSide(false);
};

function showSide(on) {
  const inside = $("side").contains(document.activeElement);
  $("side").classList.toggle("open", on);
  $("open-side").setAttribute("aria-expanded", String(on));
  if (!on && inside) $("open-side").focus(); // on a wide window it is not there, and the focus stays
}

setInterval(look, ANYWAY);
look();
