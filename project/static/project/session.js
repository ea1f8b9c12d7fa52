// A conversation's frames. Here they only say that something has happened: what it was is asked for over HTTP.

import { Link } from "../ravi/ui/stream.js";

export class SessionHints {
  // Calls `on.hint()` for each frame and each connection, `on.state("live" | "lost")`, and `on.refused(problem)` once.
  constructor(session, on) {
    this.session = session;
    let from = "";
    this.link = new Link(() => `/ws/ravi/sessions/${session}/${from}`, {
      frame: (frame) => {
        if (frame.run && frame.seq) from = `?run=${frame.run}&after=${frame.seq}`;
        on.hint();
      },
      state: (state) => {
        on.state(state);
        if (state === "live") on.hint();
      },
      end: on.refused,
    });
  }

  close() {
    this.link.close();
  }
}
