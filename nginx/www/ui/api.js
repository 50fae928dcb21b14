// The admin REST: JSON in and out, a token in a header and never in an address, errors with the
// service's own words.

const WAIT_MS = 10_000;
const STORED = "weir.token";

export class ApiError extends Error {
  // status 0: there was no answer. code and detail are the problem's; retryS: when to come back.
  constructor(status, code, detail = "", retryS = null) {
    super(detail || code);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.retryS = retryS;
  }
}

export class Api {
  #base;
  #fetch;
  #token;

  // base: the address that "v1/pools" is under. The token lives as long as this tab.
  constructor(base, { fetch = globalThis.fetch.bind(globalThis) } = {}) {
    this.#base = base;
    this.#fetch = fetch;
    this.#token = stored((storage) => storage.getItem(STORED));
  }

  get hasToken() {
    return Boolean(this.#token);
  }

  set token(token) {
    this.#token = token;
    stored((storage) => (token ? storage.setItem(STORED, token) : storage.removeItem(STORED)));
  }

  // The body of a GET.
  async read(path) {
    return (await this.ask("GET", path)).data;
  }

  // { status, data, etag } of what succeeded; an ApiError for all else.
  async ask(method, path, { body, etag } = {}) {
    const headers = {
      ...(body && { "Content-Type": "application/json" }),
      ...(etag && { "If-Match": etag }),
    };
    const response = await this.#send(method, path, headers, {
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(WAIT_MS),
    });
    let data;
    try {
      data = await response.json();
    } catch {
      throw new ApiError(0, "unreachable"); // it broke off, or some hop answered
    }
    return { status: response.status, data, etag: response.headers.get("ETag") };
  }

  // The answer's stream of bytes.
  async stream(path, headers, signal) {
    return (await this.#send("GET", path, headers, { signal })).body;
  }

  async #send(method, path, headers, options) {
    let response;
    try {
      response = await this.#fetch(new URL(path, this.#base), {
        method,
        headers: { ...headers, ...(this.#token && { Authorization: `Bearer ${this.#token}` }) },
        cache: "no-store",
        redirect: "error",
        ...options,
      });
    } catch {
      throw new ApiError(0, "unreachable");
    }
    if (!response.ok) throw await problem(response);
    return response;
  }
}

// Whether a header can carry it: fetch throws for one that cannot, and it is no token anyway.
export function isToken(text) {
  return /^[\x21-\x7e]+$/.test(text);
}

// RFC 9457.
async function problem(response) {
  let told = {};
  try {
    told = await response.json();
  } catch {
    // Some hop's page: its status has to do.
  }
  const retryS = Number(response.headers.get("Retry-After")) || null;
  const code = String(told?.code ?? response.status);
  return new ApiError(response.status, code, String(told?.detail ?? ""), retryS);
}

function stored(act) {
  try {
    return act(sessionStorage);
  } catch {
    return null; // a browser that stores nothing asks again after a reload
  }
}
