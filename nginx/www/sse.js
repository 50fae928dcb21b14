// Server-sent events out of bytes, as the HTML standard reads them (section 9.2.6).
//
// Not EventSource: that cannot POST, comes again by itself, and hides the comments that are our
// heartbeats.

const LINE_END = /\r\n|\r|\n/;

export class SseParser {
  #decoder = new TextDecoder(); // takes a BOM away, and holds a character that is half there
  #line = ""; // the part of a line that has come
  #afterCr = false; // a LF that comes next belongs to the line before
  #data = [];
  #type = "";
  #id = "";
  #lastId = "";
  #onEvent;
  #onComment;
  #onRetry;

  // onEvent({type, data, lastEventId}), onComment(text), onRetry(milliseconds).
  constructor({ onEvent, onComment = () => {}, onRetry = () => {} }) {
    this.#onEvent = onEvent;
    this.#onComment = onComment;
    this.#onRetry = onRetry;
  }

  // Where to go on from: an empty line sets it, after an event without data too.
  get lastEventId() {
    return this.#lastId;
  }

  // Takes the next bytes. There is no end to tell of: an event without its empty line is none.
  push(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return;
    if (this.#afterCr && text[0] === "\n") text = text.slice(1);
    this.#afterCr = text.endsWith("\r");
    const lines = text.split(LINE_END);
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop();
    for (const line of lines) this.#take(line);
  }

  #take(line) {
    if (line === "") {
      this.#dispatch();
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) {
      this.#onComment(line.slice(1).replace(/^ /, ""));
      return;
    }
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#type = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    else if (name === "retry" && /^[0-9]+$/.test(value)) this.#onRetry(Number(value));
  }

  #dispatch() {
    const data = this.#data;
    const type = this.#type || "message";
    this.#data = [];
    this.#type = "";
    this.#lastId = this.#id;
    if (data.length > 0) this.#onEvent({ type, data: data.join("\n"), lastEventId: this.#lastId });
  }
}
