// A conversation's frames over a websocket that may break and come back. Here they only say that something has happened:
// what it was is asked for over HTTP.

const FIRST_PAUSE = 500; // ms before the first reconnect; doubles
const LONGEST_PAUSE = 8000;
const REFUSED = { 4401: "You are logged out.", 4403: "This feed is not yours to see.", 4404: "There is no such feed." };

export class SessionHints {
  // Calls `on.hint()` for each frame and each connection, `on.state("live" | "lost")`, and `on.refused(problem)` once.
  constructor(session, on) {
    this.session = session;
    this.on = on;
    this.pause = FIRST_PAUSE;
    this.run = "";
    this.seq = 0;
    this.#connect();
  }

  close() {
    this.done = true;
    clearTimeout(this.timer);
    this.socket.close();
  }

  #connect() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const from = this.run ? `?run=${this.run}&after=${this.seq}` : "";
    this.socket = new WebSocket(`${scheme}://${location.host}/ws/ravi/sessions/${this.session}/${from}`);
    this.socket.onopen = () => {
      this.pause = FIRST_PAUSE;
      this.on.state("live");
      this.on.hint();
    };
    this.socket.onmessage = (message) => this.#take(JSON.parse(message.data));
    this.socket.onclose = (event) => this.#closed(event.code);
  }

  #take(frame) {
    if (frame.run) this.run = frame.run;
    if (frame.seq) this.seq = frame.seq;
    this.on.hint();
  }

  #closed(code) {
    if (this.done) return;
    if (REFUSED[code]) return this.on.refused(REFUSED[code]);
    this.on.state("lost");
    this.timer = setTimeout(() => this.#connect(), this.pause);
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
  }
}
