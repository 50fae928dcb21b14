// The stream of events: opened again whenever it ends, whatever ended it.

import { SseParser } from "./sse.js";

const RETRY_MS = 2000; // until the service says otherwise
const LONGEST_RETRY_MS = 15_000;
const SILENT_MS = 25_000; // it sends a comment every ten seconds
const OURS = new Set(["gap", "dropped"]); // said of the stream itself

// What stands for time, so that tests can move it.
export const timers = {
  after(ms, callback) {
    const timer = setTimeout(callback, ms);
    return () => clearTimeout(timer);
  },
};

export class Feed {
  #open;
  #on;
  #timers;
  #controller = null;
  #lastId = null;
  #retryMs = RETRY_MS;
  #failures = 0;
  #fault = null;
  #cancel = () => {};

  // open(headers, signal) gives a stream of bytes, or throws. on.opened(), then on.event({ id,
  // kind, data }) for each; on.lost(error, retryMs): it will be opened again then, unless this
  // says false. Nothing is assumed of what was missed: who opens again reads all anew.
  constructor(open, on, clock = timers) {
    this.#open = open;
    this.#on = on;
    this.#timers = clock;
  }

  start() {
    this.stop();
    this.#failures = 0;
    this.#follow();
  }

  stop() {
    this.#cancel();
    this.#controller?.abort();
    this.#controller = null;
  }

  // What else is needed beside the stream cannot be had.
  fail(error) {
    this.#fault = error;
    this.#controller?.abort();
  }

  async #follow() {
    const controller = new AbortController();
    this.#controller = controller;
    this.#fault = null;
    let error = null;
    try {
      const headers = { Accept: "text/event-stream", ...this.#since() };
      const body = await this.#open(headers, controller.signal);
      if (this.#controller !== controller) return;
      this.#on.opened();
      await this.#read(body.getReader(), controller);
    } catch (thrown) {
      error = this.#fault ?? (controller.signal.aborted ? null : thrown); // null: it was silent
    }
    if (this.#controller !== controller) return; // stopped, or started anew
    controller.abort();
    const wait = Math.min(this.#retryMs * 2 ** this.#failures++, LONGEST_RETRY_MS);
    if (this.#on.lost(error, wait) === false) return;
    this.#cancel = this.#timers.after(wait, () => this.#follow());
  }

  #since() {
    return this.#lastId === null ? {} : { "Last-Event-ID": this.#lastId };
  }

  async #read(reader, controller) {
    const parser = new SseParser({
      onEvent: (event) => this.#take(event),
      onRetry: (ms) => (this.#retryMs = ms),
    });
    for (;;) {
      const cancel = this.#timers.after(SILENT_MS, () => controller.abort());
      const { done, value } = await reader.read().finally(cancel);
      if (done || this.#controller !== controller) return;
      this.#failures = 0;
      parser.push(value);
      this.#lastId = parser.lastEventId || this.#lastId;
    }
  }

  #take({ type, data, lastEventId }) {
    let read;
    try {
      read = JSON.parse(data);
    } catch {
      return; // one that cannot be read: the next reading of all pages mends what it said
    }
    this.#on.event({ id: OURS.has(type) ? null : Number(lastEventId), kind: type, data: read });
  }
}
