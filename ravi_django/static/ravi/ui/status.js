// The words about what goes on: the line above the message, the banner, and what a screen reader hears.

import { t, took } from "./words.js";

export class Status {
  // `polled`: what to say on a site without live text.
  constructor(root, polled = "") {
    [this.line, this.time, this.banner, this.heard, this.alert] = ["status", "elapsed", "banner", "announce", "alert"].map((id) => root.getElementById(id));
    this.polled = polled;
  }

  say(text, kind = "") {
    this.line.textContent = text;
    this.line.dataset.kind = kind;
    this.alert.textContent = kind === "fault" ? text : ""; // for screen readers
  }

  elapsed(ms) {
    this.time.textContent = ms > 2000 ? took(ms, 0) : "";
  }

  // For screen readers, once: the growing text itself is no live region.
  announce(text) {
    this.heard.textContent = text;
  }

  // "live", "lost", or "polled": a short break has no words.
  connection(state) {
    if (state === this.state) return;
    this.state = state;
    this.waits?.forEach(clearTimeout);
    this.waits = [];
    const say = (text) => Object.assign(this.banner, { textContent: text, hidden: !text });
    if (state === "lost") {
      this.waits = [
        setTimeout(() => say(t("Reconnecting… The answer continues.")), 2000),
        setTimeout(() => say(t("You are offline. The answer continues. This page updates when you are online again.")), 10_000),
      ];
    } else say(state === "polled" ? this.polled : "");
  }
}

const SILENT = 4000; // ms without a frame, after which the page asks for the worker

// The seconds of a run at work, and whether its worker gives a sign of life.
export class Pulse {
  constructor(api, status, run, answer) {
    Object.assign(this, { api, status, run, answer, last: Date.now() });
    this.clock = setInterval(() => this.#beat(), 1000);
  }

  // A frame has come.
  frameArrived() {
    this.last = Date.now();
    this.answer.root.classList.remove("silent");
  }

  stop() {
    clearInterval(this.clock);
    this.stopped = true;
    this.status.elapsed(0);
  }

  // After a while without a frame: say so if the worker has missed a renewal of its lease. The caret does not blink then.
  async #beat() {
    this.status.elapsed(this.answer.root.classList.contains("silent") ? 0 : Date.now() - Date.parse(this.run.created_at));
    if (Date.now() - this.last < SILENT || this.asks || document.hidden) return;
    this.asks = true;
    const { no_sign_of_worker: late } = await this.api.get(`runs/${this.run.id}/`).catch(() => ({}));
    this.asks = false;
    if (this.stopped || Date.now() - this.last < SILENT) return;
    this.answer.root.classList.toggle("silent", Boolean(late));
    if (late) this.status.say(t("No sign of the worker for %s s. Another takes over in %s s.", Math.round(late.since_s), Math.ceil(late.takeover_in_s)));
  }
}
