// <ravi-chat>: a person, the agents that they may run, their conversations. Its shadow root comes from the server.

import { Client, newKey } from "../ravi-client.js";
import { Board } from "./board.js";
import { Composer } from "./composer.js";
import { element } from "./element.js";
import { showFoot, usageInWords } from "./foot.js";
import { isPainting } from "./markdown.js";
import { Pulse, Status } from "./status.js";
import { Talks } from "./talks.js";
import { Answer, framesOf, said } from "./transcript.js";
import { Versions } from "./versions.js";
import { setWords, statusInWords, stepInWords, t } from "./words.js";

const ENDED = new Set(["completed", "failed", "cancelled"]);
const isActive = (run) => !ENDED.has(run.status) && !run.start_at; // one with `start_at` waits for its time
const markOf = (run) => run && `${run.id}${run.start_at ?? ""}`; // changes when it starts
const NEAR = 100; // px from the end: the reader follows
const RUNS = 25; // of an opened conversation, whose page has 50 messages
const CUT = 1000; // characters of an output in a list of runs
const LOOK = 5000; // ms between two looks for runs that began elsewhere

const pageTools = () => import("./page_tools.js"); // where a page has tools

class RaviChat extends HTMLElement {
  #session = null; // id of the open conversation; null for one that has not begun
  #live = null; // { run, answer, pulse, stop } during an answer
  #opened = 0; // rises with each opening: a slow response for another conversation is dropped
  #following = true; // the reader is at the end: growing text is scrolled to
  // Of buttons at messages and answers: a version of a message is opened where it stands.
  #on = { open: (session, run, isNew) => (isNew && this.#asked(run), this.open(session, session !== this.#session, run)), fault: (message) => this.status.say(message, "fault") };
  #unsent = null; // { sent, key } of a message that the server may not have

  connectedCallback() {
    this.root = this.shadowRoot;
    setWords(JSON.parse(this.querySelector("script")?.textContent ?? "{}"));
    this.api = new Client(this.dataset.api, { ...this.dataset, t }); // csrf, sockets
    if (!this.#$("composer")) return; // no agent to run
    this.status = new Status(this.root, this.dataset.polled);
    this.talks = new Talks(this.api, this.root, {
      open: (id) => this.open(id, true),
      gone: () => this.open(null, true),
      fault: this.#on.fault,
    }, this.dataset.everyone);
    this.versions = new Versions(this.api, this.#on);
    this.#listen();
    this.open(this.dataset.session || null);
  }

  #$(id) {
    return this.root.getElementById(id);
  }

  #listen() {
    const starters = [...this.root.querySelectorAll(".starters button")];
    const agentOf = (starter) => starter.dataset.agent ?? starter.closest("[data-of]")?.dataset.of;
    const choose = (starter) => this.#choose(agentOf(starter));
    if (!this.#$("agent").querySelector("[selected]")) starters.toReversed().forEach(choose); // the first one on offer
    this.composer = new Composer(this.root, this.api, this.dataset.user, {
      fault: this.#on.fault,
      send: (text) => this.#send(text),
      pick: choose,
      prompts: () => starters.filter((starter) => starter.dataset.agent || agentOf(starter) === this.#$("agent").value),
    });
    for (const starter of starters) {
      starter.onclick = () => {
        choose(starter);
        this.#send(starter.textContent);
      };
    }
    if (starters.length) this.#$("text").placeholder = t("/ for examples");
    this.#$("agent").onchange = () => this.#starters();
    this.#$("cancel").onclick = () => this.#cancel();
    this.#$("new-chat").onclick = () => this.open(null, true);
    this.#$("open-sessions").onclick = this.#$("close-sessions").onclick = () => this.#drawer(!this.#$("sessions").classList.contains("open"));
    this.#$("to-end").onclick = () => this.#toEnd();
    this.#$("older").onclick = () => this.#older();
    new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && this.#older()).observe(this.#$("older"));
    this.#$("scroller").onscroll = () => {
      const { scrollHeight, scrollTop, clientHeight } = this.#$("scroller");
      const left = scrollHeight - scrollTop - clientHeight;
      this.#following = left < 2 || (left < NEAR && scrollTop >= this.top); // the first scroll up ends it
      this.top = scrollTop;
      if (this.#following) this.#$("to-end").hidden = true;
    };
    new ResizeObserver(() => (this.#following ? this.#toEnd() : this.#live && (this.#$("to-end").hidden = false))).observe(this.#$("transcript"));
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
      if (this.#$("sessions").classList.contains("open")) this.#drawer(false);
      else if (this.#live && event.target.matches("#text, #scroller, #cancel")) this.#cancel();
      else return; // of another field
      event.preventDefault();
    });
    this.#$("place")?.querySelector("button").addEventListener("click", () => this.#$("place").remove());
    setInterval(() => this.#look(), LOOK);
    if (!this.hasAttribute("data-panel")) addEventListener("popstate", () => this.open(/\/ui\/chat\/([0-9a-f-]{36})\//.exec(location.pathname)?.[1] ?? null));
  }

  // --- sending and following

  async #send(text) {
    if (this.sending) return;
    this.sending = true;
    if (!this.#live) this.status.say(t("Sending"));
    const [mine, { talk }] = [this.#opened, this.composer];
    const live = this.#live?.run;
    try {
      const tools = this.#tools().map(({ handler, ...tool }) => tool);
      const input = this.#input(text);
      const sent = JSON.stringify([input, tools]);
      if (this.#unsent?.sent !== sent) this.#unsent = { sent, key: newKey() };
      const options = { idempotency_key: this.#unsent.key, session: this.#session, on_busy: (live && this.#$("busy")?.value) || null, client_tools: tools };
      const run = await this.api.submit(this.#$("agent").value, input, options);
      this.#unsent = null;
      if (run.id !== live) await this.#asked(run.id);
      this.composer.sent(text, [].concat(input), talk);
      if (mine !== this.#opened) return run.session === this.#session ? this.open(run.session) : this.talks.show(this.#session); // the reader has moved
      const steered = run.id === this.#live?.run; // the run at work has the message
      this.pageSent = run.session;
      this.newest = markOf(run);
      this.#$("welcome").hidden = true;
      if (run.session !== this.#session) {
        this.#session = this.composer.talk = run.session;
        this.#moved(run.session, "replaceState");
      }
      if (steered) this.#live.answer.root.append(said(this.api, input));
      else if (this.#live) this.#queued(input);
      else {
        const nodes = this.versions.said(run.id, input);
        nodes.forEach((node) => this.#show(node));
        this.#room(nodes[0]);
        this.#follow(run);
      }
      this.#toEnd();
      this.talks.show(this.#session);
    } catch (error) {
      if (!this.#live) this.composer.busy(false);
      this.composer.unsent(text, talk);
      this.status.say(t("Not sent: %s Your text is kept.", error.message), "fault");
    } finally {
      this.sending = false;
    }
  }

  // A new message stands at the top, and its answer grows below it.
  #room(said) {
    const from = said.offsetTop - said.parentElement.offsetTop;
    said.parentElement.style.minHeight = `${from + this.#$("scroller").clientHeight - 40}px`;
  }

  // A message that waits for the answer before it.
  #queued(content, startAt) {
    const words = startAt ? t("Starts at %s", new Date(startAt).toLocaleString()) : t("Waiting for the answer before it");
    this.#show(said(this.api, content)).append(element("span", "queued", words));
  }

  #follow(run) {
    const answer = new Answer(run.agent, this.api, this.dataset);
    this.#show(answer.root);
    answer.live(true);
    this.composer.busy(true);
    this.status.say(statusInWords(run));
    this.#live = { run: run.id, answer, pulse: new Pulse(this.api, this.status, run, answer), stop: new AbortController() };
    this.#read(run.id, answer, this.#live.stop.signal);
    this.#tell("ravi-works", run.id);
  }

  async #read(run, answer, signal) {
    const used = { tokens: 0, cost: 0 };
    let problem = "";
    try {
      for await (const frame of this.api.events(run, { signal, state: (state) => this.status.connection(state) })) {
        answer.take(frame);
        this.#live?.pulse.frameArrived();
        if (frame.type === "board") this.#board(answer.root, frame.task);
        if (stepInWords(frame)) this.status.say(stepInWords(frame));
        if (frame.type === "request" && frame.kind === "client_tool") this.#runTool(run, frame);
        else if (frame.type === "request") {
          this.#tell("ravi-news");
          this.status.announce(t(frame.kind === "approval" ? "Asks for approval: %s" : "Asks: %s", frame.text || frame.tool));
        }
        if (frame.type !== "completion") continue;
        used.tokens += (frame.usage?.input_tokens ?? 0) + (frame.usage?.output_tokens ?? 0);
        used.cost = frame.cost === null || used.cost === null ? null : used.cost + frame.cost;
        this.#$("usage").textContent = usageInWords(used.tokens, used.cost);
      }
    } catch (error) {
      problem = error.message;
    }
    if (!signal.aborted) this.#finish(run, answer, problem);
  }

  async #runTool(run, frame) {
    const chat = { api: this.api, status: this.status, tools: () => this.#tools(), follows: () => this.#live?.run === run };
    await pageTools().then(({ runTool }) => runTool(chat, run, frame)).catch((error) => this.status.say(error.message, "fault"));
  }

  // The person has asked for a run on this page.
  async #asked(run) {
    if (this.closest("ravi-panel")?.tools?.length) (await pageTools()).askedOn(run, location.href);
  }

  #tools() {
    const tools = this.closest("ravi-panel")?.tools ?? [];
    if (!Array.isArray(tools)) throw new TypeError("`tools` of <ravi-panel> must be an array of { name, description, parameters, handler }.");
    return tools;
  }

  // Stop to follow, whether or not the answer has ended.
  #leave() {
    this.#live?.stop.abort();
    this.#live?.pulse.stop();
    this.#live = null;
    this.status.connection("live");
    this.#$("usage").textContent = "";
    this.composer.busy(false);
  }

  async #finish(id, answer, problem) {
    this.#leave();
    this.#tell("ravi-works", "");
    this.#tell("ravi-news");
    answer.live(false);
    if (problem) return this.status.say(problem, "fault");
    try {
      const run = await this.api.get(`runs/${id}/`);
      this.status.say(statusInWords(run), run.status === "failed" ? "fault" : "");
      answer.ended(run);
      await this.#foot(run, answer);
      if (run.status === "completed") this.status.announce(`${t("Answer complete")}. ${answer.text.length > 500 ? "" : answer.text}`);
      const more = this.root.querySelector(".queued") || (await this.#runsOf(this.#session)).some(isActive); // begun by another tab
      if (more && !this.#live) this.open(this.#session);
    } catch (error) {
      this.status.say(error.message, "fault");
    }
  }

  #foot(run, answer, newest = true) {
    this.versions.ended(run);
    return showFoot(this.api, run, answer, newest, this.#on);
  }

  async #cancel() {
    if (!this.#live || this.#$("cancel").disabled) return;
    this.#$("cancel").disabled = true;
    this.status.say(t("Stopping"));
    try {
      await this.api.cancel(this.#live.run);
    } catch (error) {
      this.#$("cancel").disabled = false;
      this.status.say(error.message, "fault");
    }
  }

  // --- one conversation

  // Show a conversation, or an empty one, at its end or at a run's message; `push` adds an entry to the browser's history.
  async open(id, push = false, at = "") {
    const mine = ++this.#opened;
    this.#leave();
    this.#following = Boolean(id); // the starter prompts are read from the top
    this.#session = id;
    if (push) this.#moved(id, "pushState");
    this.#drawer(false);
    this.#$("transcript").replaceChildren();
    this.#$("older").hidden = true;
    this.board = null;
    this.#$("transcript").style.minHeight = "";
    this.#$("welcome").hidden = Boolean(id);
    this.#starters();
    this.status.say("");
    this.composer.open(id ?? "");
    if (!this.versions.sessions.has(id)) this.talks.show(id);
    this.versions.of([]);
    if (!id) return this.#tell("ravi-works", "");
    try {
      const newest = this.api.get(`sessions/${id}/messages/?cursor=end`);
      const [page, runs, tasks, { branches }] = await Promise.all([
        newest, this.#runsOf(id, RUNS), this.api.all(`sessions/${id}/board/?limit=200`), this.api.get(`sessions/${id}/`),
      ]);
      if (mine !== this.#opened) return;
      this.versions.of(branches);
      if (branches.length) this.talks.show(id, this.versions.sessions);
      this.newest = markOf(runs[0]);
      const active = runs.findLast(isActive);
      this.#choose((active ?? runs[0])?.agent);
      // A conversation has no message of a run that waits or has just begun, or whose agent has no memory.
      const known = new Set(page.results.map((row) => row.run));
      const isSilent = (run) => !known.has(run.id) && (!ENDED.has(run.status) || !page.previous || run.created_at > page.results[0].created_at);
      const silent = await Promise.all(runs.filter(isSilent).map((run) => this.api.get(`runs/${run.id}/`)));
      if (mine !== this.#opened) return;
      const waiting = silent.filter((run) => !ENDED.has(run.status) && run.id !== active?.id).reverse();
      const begun = silent.filter((run) => !waiting.includes(run));
      const asked = begun.map(({ id: run, input, created_at }) => ({ run, role: input && "user", content: input ?? [], created_at }));
      const results = [...page.results, ...asked].sort((one, other) => Date.parse(one.created_at) - Date.parse(other.created_at));
      this.streamed = new Set([active?.id]);
      await this.#page({ ...page, results }, runs);
      if (mine !== this.#opened) return;
      active ? this.#follow(active) : this.#tell("ravi-works", ""); // it ended between two pages
      if (tasks.length) this.#board(this.#live?.answer.root ?? this.#$("transcript").lastElementChild, ...tasks);
      for (const run of waiting) if (run.input) this.#queued(run.input, run.start_at);
      this.#toEnd();
      if (at !== active?.id && this.versions.reveal(at)) this.#following = false;
    } catch (error) {
      if (mine !== this.#opened) return;
      if (error.status === 404 && this.hasAttribute("data-panel")) return this.open(null, true); // it was deleted elsewhere
      this.status.say(error.status === 404 ? t("There is no such conversation.") : error.message, "fault");
    }
  }

  // Show a run that another tab, a schedule or a program has begun in the open conversation.
  async #look() {
    if (!this.#session || this.#live || this.sending || document.hidden) return;
    const mine = this.#opened;
    const newest = (await this.#runsOf(this.#session, 1).catch(() => []))[0];
    if (newest && markOf(newest) !== this.newest && mine === this.#opened && !this.#live && !this.sending) this.open(this.#session);
  }

  #moved(session, how) {
    if (this.hasAttribute("data-panel")) this.#tell("ravi-moved", session ?? "");
    else history[how](null, "", this.#address(session));
  }

  // For the panel around.
  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true }));
  }

  // The text and the files, and once in a conversation what page of the admin it is about.
  #input(text) {
    const page = this.pageSent !== this.#session && this.#$("place")?.dataset.page;
    const about = page ? [{ type: "data", data: JSON.parse(page) }] : [];
    const blocks = [...about, ...(text ? [{ type: "text", text }] : []), ...this.composer.files.blocks];
    return blocks.length === 1 && text ? text : blocks;
  }

  #address(id) {
    return new URL(id ? `ui/chat/${id}/` : "ui/chat/", this.api.base);
  }

  async #runsOf(id, most = "") {
    return (await this.api.get(`runs/?session=${id}${most && `&limit=${most}`}`)).results.filter((run) => run.session === id); // newest first
  }

  async #older() {
    if (this.#$("older").disabled) return;
    this.#$("older").disabled = true;
    await this.#page(this.api.get(`sessions/${this.#session}/messages/${this.previous}`)).catch((error) => this.status.say(error.message, "fault"));
    this.#$("older").disabled = false;
  }

  // Show a page of messages above the others; the reader's place stays.
  async #page(found, runs = [], mine = this.#opened) {
    const { results, previous } = await found;
    if (mine !== this.#opened) return;
    let part; // the messages of a run; where it was deleted, those from a question on
    const parts = Map.groupBy(results, (row) => (part = row.run ?? (row.role === "user" ? row.id : part)));
    const nodes = await Promise.all([...parts.values()].map((rows) => this.#past(rows, runs)));
    for (let frames = 10; frames && isPainting() && !document.hidden; frames--) await new Promise(requestAnimationFrame);
    if (mine !== this.#opened) return;
    this.previous = previous && new URL(previous, this.api.base).search;
    this.#$("older").hidden = !previous;
    const left = this.#$("scroller").scrollHeight - this.#$("scroller").scrollTop;
    this.#$("transcript").prepend(...nodes.flat());
    this.#$("scroller").scrollTop = this.#$("scroller").scrollHeight - left;
  }

  // The message that a run began with, and its answer as it was streamed; from its messages, if its stream was pruned.
  async #past(rows, runs) {
    const [id, streamed] = [rows[0].run, this.streamed];
    const run = runs.find((one) => one.id === id) ?? (id && (await this.api.get(`runs/${id}/`).catch(() => null)));
    if (streamed.has(id)) {
      const [first, ...others] = rows.filter((row) => row.role === "user");
      return first ? [...this.versions.said(id, first.content, run), ...others.map((row) => said(this.api, row.content))] : [];
    }
    const frames = run && !run.parent ? await framesOf(this.api, id).catch((error) => (this.status.say(error.message, "fault"), [])) : [];
    if (frames.length) streamed.add(id);
    const answer = new Answer(run?.agent ?? this.#$("agent").value, this.api, this.dataset);
    const first = rows[0].role === "user" ? this.versions.said(id, rows.shift().content, run) : [];
    answer.past(rows, frames);
    if (run && !run.parent) {
      const isCut = run.output?.length >= CUT && answer.lacks(run.output);
      answer.ended(isCut ? await this.api.get(`runs/${id}/`) : run);
      this.#foot(run, answer, run === runs[0]).catch((error) => this.status.say(error.message, "fault"));
    }
    return [...first, answer.root];
  }

  // Show tasks on the conversation's board, which moves to this answer.
  #board(answer, ...tasks) {
    this.board ??= new Board();
    this.board.take(...tasks);
    if (this.board.root.parentElement === answer) return;
    const foot = answer?.querySelector(":scope > .foot");
    if (foot) foot.before(this.board.root);
    else answer?.append(this.board.root);
  }

  #show(node) {
    return this.#$("transcript").appendChild(node);
  }

  #toEnd() {
    this.#following = true;
    this.#$("scroller").scrollTop = this.#$("scroller").scrollHeight;
    this.#$("to-end").hidden = true;
  }

  #choose(agent) {
    for (const option of this.#$("agent").options) option.selected ||= option.value === agent;
  }

  // Show the starter prompts of the chosen agent.
  #starters() {
    for (const starter of this.root.querySelectorAll(".starters [data-of]")) starter.hidden = starter.dataset.of !== this.#$("agent").value;
  }

  #drawer(on) {
    this.#$("sessions").classList.toggle("open", on);
    if (!on && this.#$("sessions").contains(this.root.activeElement)) this.#$("open-sessions").focus();
    this.#$("open-sessions").setAttribute("aria-expanded", String(on));
  }
}

document.getElementById("unloaded")?.remove();
customElements.define("ravi-chat", RaviChat);
