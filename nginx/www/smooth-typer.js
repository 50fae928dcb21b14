// Shows a stream's text as if typed at an even pace, whatever the pace it comes at (mission 000,
// section 6: the elastic buffer).
//
// A long backlog is typed faster and in larger steps, its end slower, which covers the engine's
// pauses. What mission 000's sketch leaves open: text is cut only where it may be (stops.js);
// nothing is shown later than `lagMs` after it came, however much comes at once; what ends is
// shown whole at once; one step a frame, not one timer a character.

import { Stops } from "./stops.js";

const LAG_MS = 800; // a frame or two more, and it is still within a second
const SAME_MS = 16; // what comes within a frame counts as come together
const EASE = 2; // > 1: fast first, then slower, and there in time all the same
const FALLBACK_MS = 100; // frames stop in a tab that is hidden; timers do not

// Milliseconds a piece, for a backlog of so many: mission 000's figures.
function interval(backlog) {
  if (backlog < 5) return 55;
  if (backlog <= 20) return 30;
  return Math.max(10, 50 - backlog);
}

// The browser's time: `next` calls back with the next frame, or soon where there are none;
// `still` says that nothing shall move.
export function browserClock(view = window) {
  const calm = view.matchMedia("(prefers-reduced-motion: reduce)");
  return {
    now: () => view.performance.now(),
    still: () => view.document.hidden || calm.matches,
    next(callback) {
      const cancel = () => {
        view.cancelAnimationFrame(frame);
        view.clearTimeout(timer);
      };
      const once = () => {
        cancel();
        callback();
      };
      const frame = view.requestAnimationFrame(once);
      const timer = view.setTimeout(once, FALLBACK_MS);
      return cancel;
    },
  };
}

export class SmoothTyper {
  #render;
  #clock;
  #lagMs;
  #stops;
  #pieces = []; // to be shown, in order
  #batches = []; // when they came: { at, left }
  #came = []; // when what the stops hold back came: { at, length }
  #credit = 0; // pieces that may be shown; its fraction is kept
  #ticked = 0;
  #cancel = null;
  #finished = false;

  // render(text) is given what is to be added to what is shown, at most once a frame.
  constructor(render, { clock = browserClock(), lagMs = LAG_MS, stops = new Stops() } = {}) {
    this.#render = render;
    this.#clock = clock;
    this.#lagMs = lagMs;
    this.#stops = stops;
  }

  // Takes text as it comes.
  feed(text) {
    if (this.#finished || text === "") return;
    const now = this.#clock.now();
    this.#came.push({ at: now, length: text.length });
    const since = this.#since(this.#stops.open.length + text.length);
    this.#queue(this.#stops.push(text), since);
    if (this.#clock.still()) this.#tick();
    else if (this.#cancel === null) {
      this.#credit = 1; // the first piece waits for nothing but the frame
      this.#ticked = now;
      this.#wait();
    }
  }

  // The stream is over, whyever: shows all that is left at once, and takes nothing more.
  finish() {
    if (this.#finished) return;
    this.#finished = true;
    this.#halt();
    this.#show(this.#pieces.splice(0).concat(this.#stops.close()));
    this.#batches = [];
  }

  // When the first of the last `length` characters came.
  #since(length) {
    let first = this.#came.length;
    for (let left = length; left > 0; left -= this.#came[first].length) first -= 1;
    this.#came.splice(0, first);
    return this.#came[0].at;
  }

  #queue(pieces, at) {
    if (pieces.length === 0) return;
    this.#pieces = this.#pieces.concat(pieces);
    const last = this.#batches.at(-1);
    if (last && at - last.at < SAME_MS) last.left += pieces.length;
    else this.#batches.push({ at, left: pieces.length });
  }

  #tick() {
    const now = this.#clock.now();
    const open = this.#stops.open.length;
    if (open > 0) {
      const since = this.#since(open);
      if (now - since >= this.#lagMs) this.#queue(this.#stops.give(), since);
    }
    this.#take(this.#clock.still() ? this.#pieces.length : this.#allowed(now));
    this.#ticked = now;
    this.#halt();
    if (this.#pieces.length > 0 || this.#stops.open !== "") this.#wait();
  }

  // How many pieces may be shown now.
  #allowed(now) {
    let rate = 1 / interval(this.#pieces.length);
    let count = 0;
    let due = 0;
    for (const { at, left } of this.#batches) {
      count += left;
      const remaining = at + this.#lagMs - now;
      if (remaining > 0) rate = Math.max(rate, (EASE * count) / remaining);
      else due = count;
    }
    this.#credit = Math.max(this.#credit + rate * (now - this.#ticked), due);
    return Math.floor(this.#credit);
  }

  #take(count) {
    const pieces = this.#pieces.splice(0, count);
    this.#credit = this.#pieces.length > 0 ? this.#credit - pieces.length : 0;
    let taken = pieces.length;
    while (taken > 0) {
      const batch = this.#batches[0];
      const some = Math.min(taken, batch.left);
      taken -= some;
      batch.left -= some;
      if (batch.left === 0) this.#batches.shift();
    }
    this.#show(pieces);
  }

  #show(pieces) {
    if (pieces.length > 0) this.#render(pieces.join(""));
  }

  #wait() {
    this.#cancel = this.#clock.next(() => this.#tick());
  }

  #halt() {
    this.#cancel?.();
    this.#cancel = null;
  }
}
