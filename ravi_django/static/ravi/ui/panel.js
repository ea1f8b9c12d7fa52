// <ravi-panel>: a button that opens the chat at the side of any page. The chat loads when it is first opened.

const LOOK = 5000; // ms between two looks at a run that a closed panel has left at work
const narrow = matchMedia("(max-width: 46rem)");
const dark = matchMedia("(prefers-color-scheme: dark)");

CSS.registerProperty({ name: "--ravi-rem", syntax: "<length>", inherits: true, initialValue: "16px" }); // else an em at each element

class RaviPanel extends HTMLElement {
  connectedCallback() {
    [this.layer, this.button, this.dialog, this.full, this.asks, this.fault] = ["layer", "open", "panel", "full", "asks", "fault"].map((id) => this.shadowRoot.getElementById(id));
    this.key = `ravi.panel.${this.dataset.user}.${this.dataset.kept}`; // of {open, session, run}: run is the one at work
    this.button.onclick = () => this.open();
    this.shadowRoot.getElementById("close").onclick = () => this.close();
    this.dialog.oncancel = (event) => this.#escape(event); // a phone's button Back
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.#escape(event));
    this.addEventListener("ravi-moved", (event) => this.#moved(event.detail));
    this.addEventListener("ravi-works", (event) => this.#keep({ run: event.detail }));
    this.addEventListener("ravi-news", () => this.dialog.open || this.#news(true));
    this.#theme();
    new MutationObserver(() => this.#theme()).observe(document.documentElement, { attributes: true });
    dark.addEventListener("change", () => this.#theme());
    this.button.hidden = false;
    for (const event of ["resize", "click", "change", "load"]) addEventListener(event, () => requestAnimationFrame(() => this.#lift()));
    this.#lift();
    if (this.#kept().open && !narrow.matches) this.open();
    else this.#look();
  }

  open() {
    if (narrow.matches) this.dialog.showModal();
    else this.dialog.show();
    this.#shown(true);
    this.loaded ??= this.#load();
  }

  async #load() {
    try {
      const html = await (await fetch(this.dataset.chat)).text();
      const chat = Document.parseHTMLUnsafe(html).querySelector("ravi-chat"); // with its shadow root
      const place = chat.shadowRoot.getElementById("place");
      if (place && this.dataset.page) {
        Object.assign(place, { hidden: false }).dataset.page = this.dataset.page;
        place.firstElementChild.textContent = this.dataset.about;
      }
      chat.dataset.session = this.#kept().session ?? "";
      this.#moved(chat.dataset.session);
      this.replaceChildren(chat);
      this.#theme();
      await import("./chat.js");
    } catch {
      this.loaded = null;
    }
    this.fault.hidden = Boolean(this.loaded);
  }

  close() {
    this.dialog.close();
    this.#shown(false);
    this.button.focus();
  }

  // Close the panel, or ask first while an answer is written. An Escape in a field of the page around is for that field,
  // and the chat has used one that stopped an answer.
  #escape(event) {
    const place = document.activeElement;
    if (!this.dialog.open || event.defaultPrevented || event.isComposing || (place !== document.body && !this.contains(place))) return;
    event.preventDefault();
    if (this.#kept().run && this.asks.hidden) this.asks.hidden = false;
    else this.close();
  }

  // Before the chat is loaded: whether the run that an earlier page left at work has ended.
  async #look() {
    const { run } = this.#kept();
    if (!run || this.loaded) return;
    const answer = document.hidden ? null : await fetch(`${this.dataset.api}runs/${run}/`, { headers: { Accept: "application/json" } }).catch(() => null);
    const status = answer?.ok ? (await answer.json()).status : "";
    if (["completed", "failed", "cancelled"].includes(status)) {
      this.#keep({ run: "" });
      this.#news(true);
    } else if (!answer || answer.ok) setTimeout(() => this.#look(), LOOK);
  }

  #news(on) {
    this.button.classList.toggle("news", on);
    this.button.setAttribute("aria-label", on ? this.button.dataset.news : this.button.title);
  }

  #shown(on) {
    this.button.hidden = on;
    if (on) this.#news(false);
    this.#keep({ open: on });
  }

  #moved(session) {
    this.#keep({ session });
    if (this.full) this.full.href = `${this.dataset.home}${session ? `${session}/` : ""}`;
  }

  #kept() {
    try {
      return JSON.parse(localStorage.getItem(this.key)) ?? {};
    } catch {
      return {};
    }
  }

  #keep(change) {
    this.asks.hidden = true;
    try {
      localStorage.setItem(this.key, JSON.stringify({ ...this.#kept(), ...change }));
    } catch {
      // a full or forbidden storage keeps nothing
    }
  }

  // In a part of the page with a transform or a filter, `fixed` is relative to that part: show the panel in the browser's
  // top layer instead.
  #raise() {
    const { left, top, width, height } = this.layer.getBoundingClientRect();
    const { clientWidth, clientHeight } = document.documentElement;
    const isFixed = getComputedStyle(this.layer).position === "fixed"; // its stylesheet has loaded
    if (this.layer.popover || !isFixed || Math.max(...[left, top, width - clientWidth, height - clientHeight].map(Math.abs)) < 1) return;
    this.layer.popover = "manual";
    this.layer.showPopover();
  }

  // Put the button above a bar that the page keeps at its lower edge, such as the buttons of a form.
  #lift() {
    this.#raise();
    if (this.button.hidden) return;
    const { x, width } = this.button.getBoundingClientRect();
    const bar = document.elementsFromPoint(x + width / 2, innerHeight - width / 2).find((one) => {
      const isKept = !this.contains(one) && ["fixed", "sticky"].includes(getComputedStyle(one).position);
      return isKept && one.offsetHeight < innerHeight / 3;
    });
    this.button.style.setProperty("--lift", bar ? `${innerHeight - bar.getBoundingClientRect().top}px` : "0px");
  }

  // As the page around: by its switch, else by the scheme that it declares.
  #theme() {
    const root = document.documentElement;
    const scheme = getComputedStyle(root).colorScheme;
    const isDark = root.matches('.dark, [data-theme="dark"], [data-bs-theme="dark"]')
      || (!root.matches('.light, [data-theme="light"], [data-bs-theme="light"]') && (scheme === "dark" || (dark.matches && scheme.includes("dark"))));
    this.dataset.theme = isDark ? "dark" : "light";
    const chat = this.querySelector("ravi-chat");
    if (chat) chat.dataset.theme = this.dataset.theme;
  }
}

customElements.define("ravi-panel", RaviPanel);
