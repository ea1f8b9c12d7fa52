// The REST API of ravi_django, with the session cookie of the user.

import { t } from "./words.js";

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export class Api {
  // `token` is of the page, for a site whose CSRF cookie scripts do not read.
  constructor(base, token = "") {
    this.token = token;
    this.base = new URL(base, location.href);
  }

  get(path) {
    return this.#call("GET", path);
  }

  // The rows of all pages of a list.
  async all(page) {
    const rows = [];
    while (page) {
      const found = await this.get(page);
      rows.push(...found.results);
      page = found.next;
    }
    return rows;
  }

  post(path, body = {}) {
    return this.#call("POST", path, body);
  }

  put(path, body) {
    return this.#call("PUT", path, body);
  }

  patch(path, body) {
    return this.#call("PATCH", path, body);
  }

  delete(path) {
    return this.#call("DELETE", path);
  }

  async #call(method, path, body) {
    const headers = { Accept: "application/json" };
    const isForm = body instanceof FormData; // the browser sets its type
    if (body !== undefined && !isForm) headers["Content-Type"] = "application/json";
    if (method !== "GET") headers["X-CSRFToken"] = cookie("csrftoken") || this.token;
    const options = { method, headers, body: body === undefined || isForm ? body : JSON.stringify(body) };
    let response;
    try {
      response = await fetch(new URL(path, this.base), options);
    } catch {
      throw new ApiError(0, "unreachable", t("The server cannot be reached."));
    }
    const answer = await response.json().catch(() => null);
    if (!response.ok) {
      const error = answer?.error ?? {};
      throw new ApiError(response.status, error.code ?? "", error.message ?? t("The server answered with status %s.", response.status));
    }
    return answer;
  }
}

function cookie(name) {
  const found = document.cookie.split("; ").find((pair) => pair.startsWith(`${name}=`));
  return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
}
