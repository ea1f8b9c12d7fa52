// <ravi-chat>: a person, the agents that they may run, their conversations. Its shadow root comes from the server.

import { Api } from "./api.js";
import { element } from "./element.js";
import { RunStream } from "./stream.js";
import { Talks } from "./talks.js";
import { Answer, blocksOf, textOf } from "./transcript.js";
import { setWords, t } from "./words.js";

const ENDED = new Set(["completed", "failed", "cancelled"]);
const WORDS = {
  queued: "Waiting for the answer before it", pending: "Waiting for a worker", running: "Thinking", suspended: "Waiting",
  blocked: "Blocked: an operator has to look", completed: "Done", failed: "Failed", cancelled: "Stopped",
};
const NEAR = 100; // px from the end: the reader follows

class RaviChat extends HTMLElement {
  #session = null; // id of the open conversation; null for one that has not begun
  #live = null; // { run, stream } during an answer
  #opened = 0; // rises with each opening: a slow response for another conversation is dropped
  #following = true; // the reader is at the end: growing text is scrolled to
  #unsent = null; // { text, key } of a message that the server may not have

  connectedCallback() {
    this.root = this.shadowRoot;
    setWords(JSON.parse(this.querySelector("script")?.textContent ?? "{}"));
    this.api = new Api(this.dataset.api);
    if (!this.#$("composer")) return; // no agent to run
    this.talks = new Talks(this.api, this.root, {
      open: (id) => this.open(id, true),
      gone: () => this.open(null, true),
      fault: (message) => this.#status(message, "fault"),
    });
    this.#listen();
    this.open(this.dataset.session || null);
  }

  #$(id) {
    return this.root.getElementById(id);
  }

  #listen() {
    const composer = this.#$("composer");
    composer.onsubmit = (event) => {
      event.preventDefault();
      const text = this.#$("text").value.trim();
      if (text && this.#$("cancel").hidden) this.#send(text);
    };
    this.#$("text").onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      composer.requestSubmit();
    };
    for (const starter of this.root.querySelectorAll(".starters button")) {
      starter.onclick = () => {
        if (starter.dataset.agent) this.#$("agent").value = starter.dataset.agent;
        this.#send(starter.textContent);
      };
    }
    this.#$("agent").onchange = () => this.#starters();
    this.#$("cancel").onclick = () => this.#cancel();
    this.#$("new-chat").onclick = () => this.open(null, true);
    this.#$("open-sessions").onclick = () => this.#drawer(!this.#$("sessions").classList.contains("open"));
    this.#$("to-end").onclick = () => this.#toEnd();
    this.#$("scroller").onscroll = () => {
      this.#following = this.#near();
      if (this.#following) this.#$("to-end").hidden = true;
    };
    new ResizeObserver(() => (this.#following ? this.#toEnd() : this.#live && (this.#$("to-end").hidden = false))).observe(this.#$("transcript"));
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      if (this.#$("sessions").classList.contains("open")) this.#drawer(false);
      else this.#cancel();
    });
    addEventListener("popstate", () => this.open(/\/ui\/chat\/([0-9a-f-]{36})\//.exec(location.pathname)?.[1] ?? null));
  }

  // --- sending and following

  async #send(text) {
    this.#busy(true);
    this.#status(t("Sending"));
    this.#$("usage").textContent = "";
    if (this.#unsent?.text !== text) this.#unsent = { text, key: crypto.randomUUID?.() ?? String(Math.random()) };
    const body = { agent: this.#$("agent").value, input: text, idempotency_key: this.#unsent.key };
    try {
      const run = await this.api.post("runs/", { ...body, ...(this.#session && { session: this.#session }) });
      this.#unsent = null;
      sessionStorage.setItem(run.id, text); // the conversation has the message only after the answer
      this.#$("text").value = "";
      this.#$("welcome").hidden = true;
      this.#show(this.#said(text));
      if (run.session !== this.#session) {
        this.#session = run.session;
        history.replaceState(null, "", this.#address(run.session));
      }
      this.#follow(run);
      this.#toEnd();
      this.talks.show(this.#session);
    } catch (error) {
      this.#busy(false);
      this.#$("text").value ||= text;
      this.#status(t("Not sent: %s Your text is kept.", error.message), "fault");
    }
  }

  #follow(run) {
    const answer = new Answer(run.agent, this.api, this.dataset.inbox);
    this.#show(answer.root);
    answer.live(true);
    this.#busy(true);
    this.#status(t(WORDS[run.status]));
    const stream = new RunStream(this.api, this.dataset.sockets, run.id, {
      frame: (frame) => {
        answer.take(frame);
        const word = stepInWords(frame);
        if (word) this.#status(word);
      },
      state: (state) => this.#connection(state),
      end: (problem) => this.#finish(run.id, answer, problem),
    });
    this.#live = { run: run.id, stream };
  }

  async #finish(id, answer, problem) {
    this.#live = null;
    this.#connection("live");
    answer.live(false);
    this.#busy(false);
    if (problem) return this.#status(problem, "fault");
    try {
      const run = await this.api.get(`runs/${id}/`);
      this.#status(t(WORDS[run.status] ?? run.status), run.status === "failed" ? "fault" : "");
      if (run.error && run.status === "failed") answer.fault(run.error.message);
      if (run.status === "cancelled") answer.note(t("Stopped."));
      if (run.status === "failed") this.#offerRetry(run, answer);
      this.#$("usage").textContent = usageInWords(run);
      sessionStorage.removeItem(id);
      const next = activeOf(await this.#runsOf(this.#session)); // sent from another tab, and queued behind this one
      if (next && !this.#live) this.open(this.#session);
    } catch (error) {
      this.#status(error.message, "fault");
    }
  }

  #offerRetry(run, answer) {
    const retry = element("button", "", t("Try again"));
    retry.onclick = async () => {
      retry.disabled = true;
      try {
        await this.api.post(`runs/${run.id}/retry/`);
        this.open(this.#session);
      } catch (error) {
        retry.disabled = false;
        this.#status(error.message, "fault");
      }
    };
    answer.root.append(retry);
  }

  async #cancel() {
    if (!this.#live || this.#$("cancel").disabled) return;
    this.#$("cancel").disabled = true;
    this.#status(t("Stopping"));
    try {
      await this.api.post(`runs/${this.#live.run}/cancel/`);
    } catch (error) {
      this.#$("cancel").disabled = false;
      this.#status(error.message, "fault");
    }
  }

  // --- one conversation

  // Show a conversation, or an empty one; `push` adds an entry to the browser's history.
  async open(id, push = false) {
    const mine = ++this.#opened;
    this.#live?.stream.close();
    this.#live = null;
    this.#connection("live");
    this.#session = id;
    if (push) history.pushState(null, "", this.#address(id));
    this.#drawer(false);
    this.#$("transcript").replaceChildren();
    this.#$("welcome").hidden = Boolean(id);
    this.#$("usage").textContent = "";
    this.#starters();
    this.#status("");
    this.#busy(false);
    this.#$("text").focus();
    this.talks.show(id);
    if (!id) return;
    try {
      const [messages, runs] = await Promise.all([this.#messagesOf(id), this.#runsOf(id)]);
      if (mine !== this.#opened) return;
      const active = activeOf(runs);
      const last = (active ?? runs[0])?.agent;
      if ([...this.#$("agent").options].some((option) => option.value === last)) this.#$("agent").value = last;
      const answer = this.#showMessages(messages, active);
      if (active) this.#follow(active);
      else if (runs[0]?.status === "failed") this.#offerRetry(runs[0], answer ?? this.#showFault(runs[0]));
      this.#toEnd();
    } catch (error) {
      if (mine === this.#opened) this.#status(error.status === 404 ? t("There is no such conversation.") : error.message, "fault");
    }
  }

  #address(id) {
    return new URL(id ? `ui/chat/${id}/` : "ui/chat/", this.api.base);
  }

  async #messagesOf(id) {
    const rows = [];
    for (let page = `sessions/${id}/messages/?limit=200`; page; ) {
      const found = await this.api.get(page);
      rows.push(...found.results);
      page = found.next;
    }
    return rows;
  }

  async #runsOf(id) {
    const { results } = await this.api.get(`runs/?session=${id}`);
    return results.filter((run) => run.session === id); // newest first
  }

  #showMessages(rows, active) {
    let answer = null;
    let asked = false;
    for (const row of rows) {
      const blocks = blocksOf(row.content);
      if (row.role === "user") {
        this.#show(this.#said(textOf(blocks)));
        answer = null;
        asked ||= row.run === active?.id;
      } else if (row.run !== active?.id) {
        if (!answer) this.#show((answer = new Answer(this.#$("agent").value, this.api, this.dataset.inbox)).root);
        answer.message(row.role, blocks);
      }
    }
    const text = active && !asked && sessionStorage.getItem(active.id);
    if (text) this.#show(this.#said(text));
    return answer;
  }

  #showFault(run) {
    const answer = new Answer(run.agent, this.api, this.dataset.inbox);
    answer.fault(run.error?.message ?? t("Failed"));
    this.#show(answer.root);
    return answer;
  }

  // --- small parts

  #said(text) {
    const said = element("p", "user", text);
    said.setAttribute("part", "message");
    return said;
  }

  #show(node) {
    this.#$("transcript").append(node);
  }

  #near() {
    const { scrollHeight, scrollTop, clientHeight } = this.#$("scroller");
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  #toEnd() {
    this.#following = true;
    this.#$("scroller").scrollTop = this.#$("scroller").scrollHeight;
    this.#$("to-end").hidden = true;
  }

  #status(text, kind = "") {
    this.#$("status").textContent = text;
    this.#$("status").dataset.kind = kind;
  }

  // "live", "lost", or "polled": a short break has no words.
  #connection(state) {
    if (state === this.connection) return;
    this.connection = state;
    this.waits?.forEach(clearTimeout);
    this.waits = [];
    const say = (text) => Object.assign(this.#$("banner"), { textContent: text, hidden: !text });
    if (state === "lost") {
      this.waits = [
        setTimeout(() => say(t("Reconnecting… The answer goes on without you.")), 2000),
        setTimeout(() => say(t("You are offline. The answer goes on; this page catches up when you are back.")), 10_000),
      ];
    } else say(state === "polled" && this.hasAttribute("data-staff") ? t("This site has no ASGI process for live text. The page asks for news every second. See “A WSGI site” in docs/settings.md.") : "");
  }

  #busy(on) {
    this.#$("send").hidden = on;
    this.#$("cancel").hidden = !on;
    this.#$("cancel").disabled = false;
  }

  // Show the starter prompts of the chosen agent.
  #starters() {
    for (const starter of this.root.querySelectorAll(".starters [data-of]")) starter.hidden = starter.dataset.of !== this.#$("agent").value;
  }

  #drawer(on) {
    this.#$("sessions").classList.toggle("open", on);
    this.#$("open-sessions").setAttribute("aria-expanded", String(on));
  }
}

function activeOf(runs) {
  return runs.findLast((run) => !ENDED.has(run.status));
}

function stepInWords(frame) {
  if (frame.type === "text.delta") return t("Answering");
  if (frame.type === "reasoning.delta") return t("Thinking");
  if (frame.type !== "progress") return "";
  if (frame.step === "tool_call") return t("Calling %s", frame.content?.tool);
  return { started: t("Thinking"), thinking: t("Thinking"), tool_result: t("Thinking"), paused: t("Waiting") }[frame.step] ?? "";
}

function usageInWords(run) {
  const { input_tokens, output_tokens, cost } = run.usage;
  const seconds = (Date.parse(run.finished_at) - Date.parse(run.created_at)) / 1000;
  const price = cost === null ? "–" : cost === 0 ? t("no cost") : `$${cost.toPrecision(2)}`;
  return [t("%s tokens", (input_tokens + output_tokens).toLocaleString()), price, Number.isFinite(seconds) ? `${seconds.toFixed(1)} s` : ""].filter(Boolean).join(" · ");
}

customElements.define("ravi-chat", RaviChat);
