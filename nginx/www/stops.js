// Where a text that grows may be cut while it is shown: never within what a reader takes for one
// character (a family emoji, a flag, a letter with its accents), nor within a Markdown marker (a
// run of asterisks, a code fence with its language, a link), which would be seen raw until the
// rest has come.

const LONGEST = 300; // characters of a marker; a bracket that is open for longer is a bracket
const PORTION = 4096; // V8's segmenter takes quadratic time on long texts

const FENCE = /^(?:`{3,}[^`\n]*|~{3,}[^\n]*)\n/;
const FENCE_BEGUN = /^(?:`{3,}[^`\n]*|~{3,}[^\n]*)$/;
const TICKS = /^(?:`+|~+)/;
const LINE_MARKER = /^(?:#{1,6}|-+|=+|\+|>+|\d{1,9}[.)]?)[ \t]*/;
const RUN = /^(?:\*+|_+|~+|`+)/;
const ESCAPE = /^\\[!-/:-@[-`{-~]/;
const LINK = /^!?\[[^[\]\n]*\](?:\((?:[^()\n]|\([^()\n]*\))*\)|\[[^[\]\n]*\])/;
const HALF = /[\ud800-\udbff]$/;
const LINK_BEGUN =
  /^!?\[[^[\]\n]*(?:$|\](?:$|\((?:[^()\n]|\([^()\n]*\))*(?:\([^()\n]*)?$|\[[^[\]\n]*$))/;

// A coarser rule for browsers without Intl.Segmenter: it may join what could be parted.
const CLUSTER =
  /\r\n|\p{RI}\p{RI}|[\u1100-\u115f]+[\u1160-\u11a7]*[\u11a8-\u11ff]*\p{M}*|[^](?:[\p{M}\u200c\u{1f3fb}-\u{1f3ff}\u{e0020}-\u{e007f}]|\u200d\P{M}?)*/gu;

const length = (pattern, text) => pattern.exec(text)?.[0].length ?? 0;

// A function (index) -> the end of the character that stands there; indices must not fall.
function clusterEnds(text, segmenter) {
  const clusters = segmenter ? segmenter.segment(text) : text.matchAll(CLUSTER);
  const each = clusters[Symbol.iterator]();
  let end = 0;
  return (index) => {
    while (end <= index) {
      const { value } = each.next();
      end = value.index + (value.segment ?? value[0]).length;
    }
    return end;
  };
}

export class Stops {
  #open = "";
  #fence = ""; // the run that the code block we are in began with
  #lineStart = true;
  #segmenter;

  constructor(Segmenter = globalThis.Intl?.Segmenter) {
    this.#segmenter = Segmenter && new Segmenter(undefined, { granularity: "grapheme" });
  }

  // What has come and may yet become part of something longer.
  get open() {
    return this.#open;
  }

  // Takes more text; returns the pieces that are now sure, each to be shown whole.
  push(more) {
    let pieces = [];
    for (let at = 0; at < more.length; at += PORTION) {
      pieces = pieces.concat(this.#cut(this.#open + more.slice(at, at + PORTION), false));
    }
    return pieces;
  }

  // The pieces of what is open, as if nothing followed it.
  close() {
    return this.#cut(this.#open, true);
  }

  // The same but for its last character, which may have come just now: the next call gives it, if
  // nothing has followed it till then.
  give() {
    const pieces = this.#cut(this.#open, true, true);
    return pieces.length > 0 ? pieces : this.close();
  }

  // `closed`: no marker goes on; `kept`: the last character may all the same.
  #cut(whole, closed, kept = !closed) {
    // Half a character would hide from the segmenter what it belongs to.
    const half = kept && HALF.test(whole) ? whole.at(-1) : "";
    const text = half ? whole.slice(0, -1) : whole;
    const pieces = [];
    const clusterEnd = clusterEnds(text, this.#segmenter);
    let at = 0;
    while (at < text.length) {
      const end = this.#pieceEnd(text, at, clusterEnd, closed, kept);
      // Nothing but a line feed is sure to have nothing added.
      if (end === text.length && kept && text[end - 1] !== "\n") break;
      const piece = text.slice(at, end);
      pieces.push(piece);
      this.#lineStart = piece.endsWith("\n") || (this.#lineStart && piece.trim() === "");
      at = end;
    }
    this.#open = text.slice(at) + half;
    return pieces;
  }

  #pieceEnd(text, at, clusterEnd, closed, kept) {
    const near = text.slice(at, at + LONGEST);
    const last = at + near.length === text.length && near.length < LONGEST && !closed;
    const marker = this.#marker(near, last, kept);
    // A marker's last sign may carry an accent.
    return clusterEnd(at + Math.max(marker, 1) - 1);
  }

  // How long the Markdown marker is that a text begins with, 0 where it does with none; all of
  // the text, where it is the `last` that has come and more may belong to it.
  #marker(near, last, kept) {
    if (this.#fence) return this.#lineStart ? this.#closingFence(near, kept) : 0;
    if (this.#lineStart) {
      const fence = length(FENCE, near);
      if (fence) {
        this.#fence = TICKS.exec(near)[0];
        return fence;
      }
      if (last && FENCE_BEGUN.test(near)) return near.length;
      const line = length(LINE_MARKER, near);
      if (line) return line;
    }
    if (last && LINK_BEGUN.test(near)) return near.length;
    return length(RUN, near) || length(ESCAPE, near) || length(LINK, near);
  }

  #closingFence(near, kept) {
    const run = length(TICKS, near);
    // One that reaches the end may grow: it is held back, and seen again with what follows.
    const sure = run > 0 && (!kept || run < near.length);
    if (sure && near.slice(0, run).startsWith(this.#fence)) this.#fence = "";
    return run;
  }
}
