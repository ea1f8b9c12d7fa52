// A conversation's frames. Here they only say that something has happened: what it was is asked for over HTTP.

export class SessionHints {
  #stop = new AbortController();

  // Calls `on.hint()` for each frame and each connection, `on.state("live" | "lost")`, and `on.refused(problem)` once.
  constructor(api, session, on) {
    this.session = session;
    this.#read(api, on);
  }

  close() {
    this.#stop.abort();
  }

  async #read(api, on) {
    let from = "";
    const state = (state) => {
      on.state(state);
      if (state === "live") on.hint();
    };
    try {
      for await (const frame of api.socket(() => `sessions/${this.session}/${from}`, { signal: this.#stop.signal, state })) {
        if (frame.run && frame.seq) from = `?run=${frame.run}&after=${frame.seq}`;
        on.hint();
      }
    } catch (error) {
      on.refused(error.message);
    }
  }
}
