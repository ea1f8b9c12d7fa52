// The words about what goes on: the line above the message, the banner, and what a screen reader hears.

import { t, took } from "./words.js";

export class Status {
  // On a site without live text `staff` see a hint.
  constructor(root, staff) {
    [this.line, this.time, this.banner, this.heard, this.alert] = ["status", "elapsed", "banner", "announce", "alert"].map((id) => root.getElementById(id));
    this.staff = staff;
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
    } else say(state === "polled" && this.staff ? t("This site has no ASGI process for live text. The page asks for news every second. Serve the site with an ASGI server.") : "");
  }
}
