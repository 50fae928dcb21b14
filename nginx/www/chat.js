// One question and its answer over HTTP: what became of it, told apart so that nobody can take a
// part of an answer for the whole.

import { SseParser } from "./sse.js";

const RETRY_S = 5; // where nobody says when to come back
const LONGEST_RETRY_S = 60;

// Asks, and returns how it ended:
//   { kind: "whole" }        the terminator came, and no error before it
//   { kind: "stopped" }      the signal was raised
//   { kind: "incomplete", code, message }   it began and did not end well
//   { kind: "refused", code, message, retryS }   there is no answer; retryS: null where coming
//                            again is of no use
// Meanwhile: on.text(text), on.thinking() for what a model says to itself, on.beat() for each
// heartbeat.
export async function ask(url, { headers, body, signal, on, fetch = globalThis.fetch }) {
  let response;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: { Accept: "text/event-stream", "Content-Type": "application/json", ...headers },
      body: JSON.stringify({ ...body, stream: true }),
      cache: "no-store",
      signal,
    });
    if (!response.ok) return await refusal(response);
  } catch {
    if (signal?.aborted) return { kind: "stopped" };
    return { kind: "refused", code: "unreachable", message: "", retryS: RETRY_S };
  }
  const kind = response.headers.get("Content-Type") ?? "";
  if (!kind.startsWith("text/event-stream")) {
    await response.body?.cancel();
    return { kind: "incomplete", code: "not_a_stream", message: kind };
  }
  return follow(response.body.getReader(), signal, on);
}

async function follow(reader, signal, on) {
  const answer = new Answer(on);
  const parser = new SseParser({ onEvent: (event) => answer.take(event), onComment: on.beat });
  try {
    while (answer.failure === null) {
      const { done, value } = await reader.read();
      if (done) break;
      parser.push(value);
    }
  } catch {
    if (signal?.aborted && !answer.terminated) return { kind: "stopped" };
  }
  // What follows an error is of no interest, and holds room on the GPU.
  reader.cancel().catch(() => {});
  return answer.outcome();
}

// What the events of an answer amount to.
class Answer {
  terminated = false;
  failure = null;
  #finish = null;
  #on;

  constructor(on) {
    this.#on = on;
  }

  take({ type, data }) {
    if (this.terminated || this.failure) return;
    if (data.trim() === "[DONE]" && type !== "error") {
      this.terminated = true;
      return;
    }
    if (data.trim() === "" && type !== "error") return; // nothing is missing in it
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      // A frame that cannot be read is a hole in the text.
      this.failure = { code: "damaged", message: "" };
    }
    if (type === "error" || message?.error) this.failure ??= errorIn(message);
    if (this.failure) return;
    const choice = message?.choices?.[0];
    this.#finish = choice?.finish_reason ?? this.#finish;
    const text = choice?.delta?.content;
    if (typeof text === "string" && text) this.#on.text(text);
    else if (choice?.delta?.reasoning_content || choice?.delta?.reasoning) this.#on.thinking();
  }

  outcome() {
    if (this.failure) return { kind: "incomplete", ...this.failure };
    if (!this.terminated) return { kind: "incomplete", code: "no_end", message: "" };
    // An answer that ran into a limit has a terminator too.
    if (this.#finish !== null && this.#finish !== "stop") {
      return { kind: "incomplete", code: this.#finish, message: "" };
    }
    return { kind: "whole" };
  }
}

function errorIn(message) {
  const error = message?.error ?? message ?? {};
  if (typeof error === "string") return { code: "error", message: error };
  return { code: String(error.code ?? error.type ?? "error"), message: String(error.message ?? "") };
}

// A refusal is one event or a JSON object; its own word on when to come back is finer than the
// header's.
async function refusal(response) {
  const error = await refusalBody(response);
  const seconds = Math.max(
    Number(response.headers.get("Retry-After")) || 0,
    Math.ceil((error?.error?.weir?.retry_after_ms ?? 0) / 1000),
  );
  const again = response.status === 429 || response.status >= 500;
  return {
    kind: "refused",
    ...errorIn(error ?? { error: { code: String(response.status) } }),
    retryS: again ? Math.min(seconds || RETRY_S, LONGEST_RETRY_S) : null,
  };
}

async function refusalBody(response) {
  let found = null;
  const read = (data) => {
    try {
      found ??= JSON.parse(data);
    } catch {
      // Some hop's page of HTML: its status has to do.
    }
  };
  const kind = response.headers.get("Content-Type") ?? "";
  if (kind.startsWith("text/event-stream")) {
    const parser = new SseParser({ onEvent: ({ data }) => read(data) });
    parser.push(new Uint8Array(await response.arrayBuffer()));
  } else {
    read(await response.text());
  }
  return found;
}
