// Frames over a websocket that may break and come back; of one run tree also over HTTP, where the server has no websockets.

import { t } from "./words.js";

const FIRST_PAUSE = 500; // ms before the first reconnect; doubles
const LONGEST_PAUSE = 10_000;
const POLL = 1000; // ms between two looks at the JSON page
const REFUSED = {
  4400: "The server refused the request of this page. Reload the page.",
  4401: "You are logged out.",
  4403: "You may not see this conversation.",
  4404: "There is no such conversation.",
};

// Calls `on.frame(frame)`, `on.state("live" | "lost")` and at the end once `on.end(problem)`. `address()` is the path to
// open next. Optional are `on.over()`, whether a normal close is the end (problem is ""), and `on.unopened()`, which is
// called instead of a second try when the first socket was never open.
export class Link {
  constructor(address, on) {
    this.address = address;
    this.on = on;
    this.pause = FIRST_PAUSE;
    this.back = (event) => event.persisted && !this.done && this.#connect(); // from the back and forward cache
    addEventListener("pageshow", this.back);
    this.#connect();
  }

  close() {
    this.done = true;
    removeEventListener("pageshow", this.back);
    clearTimeout(this.timer);
    this.socket.close();
  }

  #connect() {
    clearTimeout(this.timer);
    const url = new URL(this.address(), location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.socket = new WebSocket(url));
    socket.onopen = () => {
      this.opened = true;
      this.on.state("live");
    };
    socket.onmessage = (message) => {
      this.pause = FIRST_PAUSE;
      if (!this.done) this.on.frame(JSON.parse(message.data));
    };
    socket.onclose = (event) => socket === this.socket && !this.done && this.#closed(event.code);
  }

  #closed(code) {
    if (REFUSED[code] || (code === 1000 && this.on.over?.())) {
      this.close();
      return this.on.end(t(REFUSED[code] ?? ""));
    }
    if (!this.opened && this.on.unopened) return this.on.unopened();
    this.on.state("lost");
    this.timer = setTimeout(() => this.#connect(), this.pause * (0.5 + Math.random() / 2));
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
  }
}

export class RunStream {
  // The frames of one run tree, in order and each once. Calls as Link, and `on.state("polled")`.
  // `sockets` is the address of the runs' sockets.
  constructor(api, sockets, run, on) {
    Object.assign(this, { api, sockets, run, on, seq: 0 });
    this.#connect();
  }

  close() {
    this.done = true;
    clearTimeout(this.timer);
    this.link.close();
  }

  #connect() {
    this.link = new Link(() => new URL(`${this.run}/?after=${this.seq}`, new URL(this.sockets, location.href)), {
      frame: (frame) => this.#take(frame),
      state: (state) => this.on.state(state),
      end: (problem) => this.on.end(problem),
      over: () => this.over,
      unopened: () => this.#poll(),
    });
  }

  #take(frame) {
    if (this.done || (frame.seq && frame.seq <= this.seq)) return;
    // A finished call's tokens may come back as one: from_seq…seq. What we had of it is in there again.
    frame.again = Boolean(frame.from_seq && frame.from_seq <= this.seq);
    if (frame.seq) this.seq = frame.seq;
    this.on.frame(frame);
    this.over = frame.type === "stream.done"; // but for a retry, whose frames are next
  }

  // Read the JSON page every second. A server that is not there at all is tried again by websocket.
  async #poll() {
    this.link.close();
    try {
      const page = await this.api.get(`runs/${this.run}/events/?after=${this.seq}`);
      this.on.state("polled");
      for (const frame of page.results) this.#take(frame);
      if (this.done) return;
      if (page.done) return this.on.end("");
    } catch (error) {
      if (this.done) return;
      if (error.status && error.status < 500 && error.status !== 429) return this.on.end(error.message);
      this.on.state("lost");
      this.timer = setTimeout(() => this.#connect(), 5 * POLL);
      return;
    }
    this.timer = setTimeout(() => this.#poll(), POLL);
  }
}
