// A client of ravi_django, for pages and for Node 20 or newer: run agents, follow them, answer requests, upload files.
// It imports nothing. See docs/howto/javascript.md.

const [FIRST_PAUSE, LONGEST_PAUSE] = [500, 10_000]; // ms before a try after a failure; doubles
const LONGEST_RETRY = 120; // s, of the times that the site may ask to wait
const CALL_TRIES = 4;
const CALL_TIMEOUT = 60_000; // ms
const [POLL, QUIET_POLL, PAGE] = [250, 1000, 500]; // ms between two looks at the JSON page, at most while it has no news; and its frames
const AWAY = new Set([0, 429, 500, 502, 503, 504]); // statuses that may be different soon
const [DONE, TOO_MANY] = [1000, 4429]; // codes that close a socket
const REFUSED = {
  4400: "The server refused the request of this page. Reload the page.",
  4401: "You are logged out.",
  4403: "You may not see this conversation.",
  4404: "There is no such conversation.",
};

/** @typedef {{seq: number, type: string, run: string, agent: string, [name: string]: any}} Frame */
/** @typedef {"live" | "lost" | "polled"} State "polled": by HTTP */
/** @typedef {{signal?: AbortSignal, state?: (state: State) => void}} Following `signal` ends it early */

/** An error of the site, a site that cannot be reached, or a run that did not complete. */
export class ApiError extends Error {
  /** @type {string | null} the id of the run that was submitted before the error: it may go on */
  run = null;
  retry_after = 0; // seconds that the site asks to wait

  /** @param {number} status of HTTP; 0: no answer. 500 of `run`: the run has not completed
   *  @param {string} code such as "invalid_input"; "unreachable": no answer; "": an answer of another server
   *  @param {string} message @param {string | null} field the part of the request to fix @param {any} cause */
  constructor(status, code, message, field = null, cause = null) {
    super(message, cause ? { cause } : {});
    this.status = status;
    this.code = code;
    this.field = field;
  }
}

export class Client {
  #token;
  #csrf;
  #t;

  /** @param {string | URL} url the mount of ravi_django @param {object} [options]
   *  @param {string} [options.token] without it the browser's session is used
   *  @param {string} [options.csrf] for a site whose CSRF cookie scripts cannot read
   *  @param {string | URL} [options.sockets] the address of the sockets; "": there are none
   *  @param {(text: string, ...values: any[]) => string} [options.t] translates the client's own messages */
  constructor(url, { token = "", csrf = "", sockets = "/ws/ravi/", t } = {}) {
    this.base = new URL(String(url).replace(/\/*$/, "/"), globalThis.location?.href);
    this.sockets = sockets && new URL(String(sockets).replace(/\/*$/, "/"), this.base);
    if (this.sockets) this.sockets.protocol = this.sockets.protocol.replace("http", "ws");
    this.#token = token && !token.includes(" ") ? `Token ${token}` : token;
    this.#csrf = csrf;
    this.#t = t ?? ((text, ...values) => text.replace(/%s/g, () => String(values.shift())));
  }

  /** Submit, wait for the end, and return the run. Throws ApiError also if the run fails, is cancelled or blocked, and
   *  with code "aborted" after the signal.
   *  @param {string} agent @param {string | object[]} input @param {object} [options] see `submit`
   *  @param {Following} [following] */
  async run(agent, input, options, following) {
    const { id } = await this.submit(agent, input, options, following);
    try {
      for await (const frame of this.events(id, following)) if (frame.run === id && frame.content?.status === "blocked") break;
      const run = await this.#call("GET", `runs/${id}/`, undefined, following?.signal);
      if (run.status !== "completed") throw new ApiError(500, run.status, run.error?.message ?? run.status);
      return run;
    } catch (error) {
      throw Object.assign(error, { run: id });
    }
  }

  /** Submit a run and return it. Repeats after a connection error: the idempotency key makes the site submit once.
   *  @param {string} agent @param {string | object[]} input a text or content blocks
   *  @param {object} [options] other fields of `POST runs/`, such as session and on_busy @param {Following} [following] */
  async submit(agent, input, options = {}, { signal } = {}) {
    const body = { ...options, agent, input, idempotency_key: options.idempotency_key ?? newKey() };
    for (let tries = 1; ; tries++) {
      try {
        return await this.#call("POST", "runs/", body, signal);
      } catch (error) {
        const again = AWAY.has(error.status) && error.retry_after <= LONGEST_RETRY && tries < CALL_TRIES;
        if (!again || signal?.aborted) throw error;
        await sleep(Math.max(FIRST_PAUSE * 2 ** (tries - 1), 1000 * error.retry_after), signal);
      }
    }
  }

  /** Submit, and follow the run as `events` does.
   *  @param {string} agent @param {string | object[]} input @param {object} [options] see `submit`
   *  @param {Following} [following] @returns {AsyncGenerator<Frame>} */
  async *stream(agent, input, options, following) {
    let run = null;
    try {
      run = (await this.submit(agent, input, options, following)).id;
      yield* this.events(run, following);
    } catch (error) {
      if (!following?.signal?.aborted) throw Object.assign(error, { run });
    }
  }

  /** The frames of a run's tree above the number `after`, each once and without gaps, until the run has ended. By a
   *  websocket, which is opened again when it breaks; where there are none, by the JSON page.
   *  @param {string} run @param {Following & {after?: number}} [following] @returns {AsyncGenerator<Frame>} */
  async *events(run, { after = 0, signal, state = () => {} } = {}) {
    const place = { seq: after, isEnd: false }; // a retry may follow the end
    for await (const frame of this.#frames(run, place, signal, state)) {
      if (signal?.aborted || !(frame.seq > place.seq)) continue; // without a number: of the socket, whose end says more
      Object.assign(place, { seq: frame.seq, isEnd: frame.type === "stream.done" });
      yield frame;
    }
  }

  async *#frames(run, place, signal, state) {
    for (;;) {
      yield* this.socket(() => `runs/${run}/?after=${place.seq}`, { signal, state, once: true });
      if (place.isEnd || signal?.aborted) return;
      try {
        for (let pause = POLL; !signal?.aborted; pause = Math.min(1.25 * pause, QUIET_POLL)) {
          const page = await this.#call("GET", `runs/${run}/events/?after=${place.seq}&limit=${PAGE}`, undefined, signal);
          state("polled");
          yield* page.results;
          if (page.done) return;
          if (page.results.length) pause = POLL;
          if (page.results.length < PAGE) await sleep(pause, signal);
        }
      } catch (error) {
        if (signal?.aborted) return;
        if (!AWAY.has(error.status)) throw error;
        state("lost");
        await sleep(5 * QUIET_POLL, signal);
      }
    }
  }

  /** The frames of a socket, which is opened again when it breaks. Ends with `once` when the server closes it normally, when
   *  the first one was never open, and when the user has too many.
   *  @param {() => string} path of the next socket, below the address of the sockets
   *  @param {Following & {once?: boolean}} [following] @returns {AsyncGenerator<Frame>} */
  async *socket(path, { signal, state = () => {}, once = false } = {}) {
    let opened = false;
    for (let pause = FIRST_PAUSE; globalThis.WebSocket && this.sockets && !signal?.aborted; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      let code = 0;
      try {
        for await (const news of newsOf(await this.#address(path(), signal), signal)) {
          if (signal?.aborted) return;
          if (news.frame) {
            if (news.frame.seq) pause = FIRST_PAUSE; // not after an error, which a close follows
            yield news.frame;
          } else if (news.open) {
            opened = true;
            state("live");
          } else code = news.code;
        }
      } catch (error) {
        if (!AWAY.has(error.status)) throw error; // no ticket
      }
      if (REFUSED[code]) throw new ApiError(code - 4000, "refused", this.#t(REFUSED[code]));
      if (signal?.aborted || (once && (!opened || code === DONE || code === TOO_MANY))) return;
      state("lost");
      await sleep(pause * (0.5 + Math.random() / 2), signal);
    }
  }

  /** Request the cancellation of a run. @param {string} run */
  cancel = (run) => this.post(`runs/${run}/cancel/`);

  /** The pending requests that the user may answer or, without `may_answer`, read.
   *  @param {object} [filters] of `GET requests/`, such as run and status */
  requests = (filters) => this.all(`requests/?${new URLSearchParams({ status: "pending", ...filters })}`);

  /** Answer a request. The first answer counts: a later one is a 409.
   *  @param {string} request @param {string} action approve, deny, edit, answer, skip, cancel or resolve
   *  @param {object} [fields] of the action, such as text and reason */
  answer = (request, action, fields = {}) => this.post(`requests/${request}/answer/`, { action, ...fields });

  /** Upload a file, and return it as a content block for `input`.
   *  @param {Blob & {name?: string}} file @param {string} [name] of a blob that is no File */
  async upload(file, name = file.name) {
    const form = new FormData();
    form.append("file", file, name);
    const row = await this.post("files/", form);
    const [kind] = row.type.split("/");
    const type = ["image", "audio", "video"].includes(kind) ? kind : "document";
    return { type, file: row.id, name: row.name, size: row.size };
  }

  // --- any call, by its path below the mount

  get = (path) => this.#call("GET", path);
  post = (path, body = {}) => this.#call("POST", path, body);
  put = (path, body) => this.#call("PUT", path, body);
  patch = (path, body) => this.#call("PATCH", path, body);
  delete = (path) => this.#call("DELETE", path);

  /** The rows of all pages of a list. */
  async all(path) {
    const rows = [];
    while (path) {
      const { results, next } = await this.get(path);
      rows.push(...results);
      path = next && path.split("?")[0] + new URL(next, this.base).search; // behind a proxy the rest of the address may be wrong
    }
    return rows;
  }

  async #call(method, path, body, signal) {
    const headers = { Accept: "application/json" };
    const isForm = body instanceof FormData; // the browser sets its type
    if (body !== undefined && !isForm) headers["Content-Type"] = "application/json";
    if (this.#token) headers.Authorization = this.#token;
    else if (method !== "GET") headers["X-CSRFToken"] = globalThis.document?.cookie.match(/(?:^|; )csrftoken=([^;]+)/)?.[1] ?? this.#csrf;
    const url = new URL(path, this.base);
    const timeout = isForm ? undefined : AbortSignal.timeout(CALL_TIMEOUT); // an upload may take longer
    const end = signal && timeout ? AbortSignal.any?.([signal, timeout]) : timeout; // `any`: since Node 20.3
    /** @type {RequestInit} */
    const options = { method, headers, credentials: this.#token ? "omit" : "include", signal: end ?? signal, body: isForm ? body : JSON.stringify(body) };
    let response, answer;
    try {
      response = await fetch(url, options);
      const text = await response.text();
      answer = text ? JSON.parse(text) : null;
    } catch (cause) {
      if (signal?.aborted) throw new ApiError(0, "aborted", `${method} ${url} was aborted`, null, cause);
      if (!(cause instanceof SyntaxError)) throw new ApiError(0, "unreachable", this.#t("The server cannot be reached (%s).", url), null, cause);
    }
    if (response.ok && answer !== undefined) return answer;
    const strange = AWAY.has(response.status)
      ? this.#t("The server answered with status %s.", response.status)
      : this.#t("%s answered with status %s, and not as ravi_django does: is this the URL of its mount?", url, response.status);
    const { code = "", message = strange, field } = answer?.error ?? {};
    throw Object.assign(new ApiError(response.status, code, message, field), { retry_after: Number(response.headers.get("Retry-After")) || 0 });
  }

  async #address(path, signal) {
    const url = new URL(path, this.sockets);
    if (this.#token) url.searchParams.set("ticket", (await this.#call("POST", "tickets/", {}, signal)).ticket);
    return url;
  }
}

// What a socket says: {open}, any number of {frame}, and {code} when it is closed.
async function* newsOf(url, signal) {
  const news = [];
  let wake = (_ = null) => {};
  const put = (one) => wake(news.push(one));
  const stop = () => put({ code: 0 });
  const back = (event) => event.persisted && stop(); // from the browser's back and forward cache
  const socket = new WebSocket(url);
  socket.onopen = () => put({ open: true });
  socket.onmessage = ({ data }) => put({ frame: JSON.parse(data) });
  socket.onclose = ({ code }) => put({ code });
  signal?.addEventListener("abort", stop);
  globalThis.addEventListener?.("pageshow", back);
  try {
    while (true) {
      while (!news.length) await new Promise((resolve) => (wake = resolve));
      const one = news.shift();
      yield one;
      if ("code" in one) return;
    }
  } finally {
    signal?.removeEventListener("abort", stop);
    globalThis.removeEventListener?.("pageshow", back);
    socket.close();
  }
}

/** An idempotency key. */
export function newKey() {
  return crypto.randomUUID?.() ?? String(Math.random()); // a page of plain http has no randomUUID
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      resolve(signal?.removeEventListener("abort", end));
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}
