/* What waits for the person who looks: a number on every page, word of new requests on the list, and of an answer by
   somebody else on a request's page. It only tells: nothing is decided here, and no row moves under the mouse. */
(function () {
  "use strict";

  if (window.raviRequests) return; // a site may have it on all pages, and ours have it anyway
  window.raviRequests = true;
  const script = document.currentScript;
  const inbox = script.dataset.inbox;
  const list = document.querySelector("[data-ravi-list]");
  const page = document.querySelector("[data-ravi-request]");
  const words = JSON.parse(script.dataset.words || "{}"); // by their English, when the page is not
  const plural = new Intl.PluralRules(words.language || "en");
  const fresh = new Set();
  let wait = 1000; // milliseconds until the next try
  let tries = 0; // in a row that came to nothing
  let opened = false;

  function said(text) {
    return words[text] || text;
  }

  /* In the form that fits the number: that of 1, 2 or 5. */
  function counted(one, many, count) {
    const forms = words[many] || { 1: one, 5: many };
    const fitting = Object.keys(forms).find((sample) => plural.select(Number(sample)) === plural.select(count));
    return forms[fitting || 5].replace("%s", count);
  }

  function badge(count) {
    const tools = document.getElementById("user-tools"); // a theme without it has the number in its lists of apps
    let link = document.getElementById("ravi-badge");
    if (!count || !tools) return link?.remove();
    if (!link) {
      link = Object.assign(document.createElement("a"), { id: "ravi-badge", className: "ravi-badge", href: inbox });
      tools.prepend(link);
    }
    link.textContent = count > 99 ? "99+" : String(count);
    link.setAttribute("aria-label", counted("%s request to answer", "%s requests to answer", count));
    link.title = link.getAttribute("aria-label");
  }

  function say(place, text, link) {
    place.textContent = text + " ";
    const { pathname, search } = window.location; // without a hash, which would only scroll
    place.append(Object.assign(document.createElement("a"), { href: pathname + search, textContent: link }));
  }

  function sayFresh() {
    if (!fresh.size) list.textContent = "";
    else say(list, counted("%s new request.", "%s new requests.", fresh.size), said("Reload the list"));
  }

  function hear(frame) {
    if (Number.isInteger(frame.pending)) badge(frame.pending);
    const { id } = frame;
    if (!id) return;
    if (list && frame.type === "request" && frame.may_answer !== false && new Date(frame.created_at) > new Date(list.dataset.raviList)) {
      fresh.add(id);
      sayFresh();
    }
    if (list && frame.type === "request.closed" && fresh.delete(id)) sayFresh();
    if (page && page.dataset.raviRequest === id && page.dataset.raviVersion) hearOfPage(frame);
  }

  function hearOfPage(frame) {
    if (frame.type === "request.closed") {
      const answered = said("%s has answered this request.").replace("%s", () => frame.answered_by);
      say(page, frame.answered_by ? answered : said("This request has been closed."), said("Show the outcome"));
    } else if (frame.type === "request" && frame.version > Number(page.dataset.raviVersion)) {
      say(page, said("This request has changed since you opened it."), said("Show the current version"));
    }
  }

  /* A site without sockets is asked again after some minutes, and not on each of its pages. */
  function leaveAlone() {
    try {
      sessionStorage.setItem("ravi-no-socket", String(Date.now()));
    } catch (error) { /* no storage: asked again by the next page */ }
  }

  function isLeftAlone() {
    try {
      return Date.now() - Number(sessionStorage.getItem("ravi-no-socket") || 0) < 300000;
    } catch (error) {
      return false;
    }
  }

  function connect() {
    const address = new URL(script.dataset.socket, window.location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address);
    socket.addEventListener("open", function () {
      opened = true;
      wait = 1000;
      tries = 0;
    });
    socket.addEventListener("message", function (event) {
      hear(JSON.parse(event.data));
    });
    socket.addEventListener("close", function (event) {
      tries += 1;
      if (event.code >= 4400 && event.code < 4500) return; // refused
      if (!opened && tries === 2) return leaveAlone();
      setTimeout(connect, wait * (0.5 + Math.random() / 2));
      wait = Math.min(wait * 2, 60000);
    });
  }

  /* A letter goes to its button and does not press it: nobody approves by a slip of the hand. */
  function jump(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const button = document.querySelector('[data-ravi-key="' + CSS.escape(event.key.toLowerCase()) + '"]');
    if (!button) return;
    event.preventDefault();
    const folded = button.closest("details");
    if (folded) folded.open = true;
    button.focus();
  }

  if (document.querySelector("[data-ravi-key]")) {
    document.addEventListener("keydown", jump);
    document.querySelectorAll("[data-ravi-script-only]").forEach(function (note) { note.hidden = false; });
  }
  if (inbox && script.dataset.socket && "WebSocket" in window && !isLeftAlone()) connect();
})();
