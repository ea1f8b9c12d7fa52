// The frames of one run tree, in order and each once, over a websocket that may break and come back.

import { t } from "./words.js";

const FIRST_PAUSE = 500; // ms before the first reconnect; doubles
const LONGEST_PAUSE = 8000;
const REFUSED = {
  4400: "The server refused the request of this page. Reload the page.",
  4401: "You are logged out.",
  4403: "You may not see this run.",
  4404: "There is no such run.",
};

export class RunStream {
  // Calls `on.frame(frame)` for each frame, `on.state("live" | "lost")`, and at the end once `on.end(problem)`, where
  // problem is "" after the last stream.done.
  // `sockets` is the address of the runs' sockets.
  constructor(sockets, run, on) {
    this.sockets = sockets;
    this.run = run;
    this.on = on;
    this.seq = 0;
    this.done = this.over = false;
    this.pause = FIRST_PAUSE;
    this.#connect();
  }

  close() {
    this.done = true;
    clearTimeout(this.timer);
    this.socket.close();
  }

  #connect() {
    const url = new URL(`${this.run}/?after=${this.seq}`, new URL(this.sockets, location.href));
    url.protocol = url.protocol.replace("http", "ws");
    this.socket = new WebSocket(url);
    this.socket.onopen = () => {
      this.on.state("live");
    };
    this.socket.onmessage = (message) => this.#take(JSON.parse(message.data));
    this.socket.onclose = (event) => this.#closed(event.code);
  }

  #take(frame) {
    this.pause = FIRST_PAUSE;
    if (this.done || (frame.seq && frame.seq <= this.seq)) return;
    // A finished call's tokens may come back as one: from_seq…seq. What we had of it is in there again.
    frame.again = Boolean(frame.from_seq && frame.from_seq <= this.seq);
    if (frame.seq) this.seq = frame.seq;
    this.on.frame(frame);
    this.over = frame.type === "stream.done"; // but for a retry, whose frames are next
  }

  #closed(code) {
    if (this.done) return;
    if (this.over && code === 1000) return this.#end("");
    if (REFUSED[code]) return this.#end(t(REFUSED[code]));
    this.on.state("lost");
    this.timer = setTimeout(() => this.#connect(), this.pause);
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
  }

  #end(problem) {
    this.done = true;
    this.on.end(problem);
  }
}
