// What a screen reader is told of an answer that is being typed: whole sentences, and how it
// ended. Each character would be noise, and the whole at the end minutes late.

const SENTENCE = /[^]*?(?:[。！？!?\n]+|[.;；]\s)/y;
const LONGEST = 300; // characters without an end of sentence
const KEPT = 30; // sentences; older ones have been read
// Markdown's own, and no signs of a number: `3~5`, `5*10`, `10**9`, `#1`.
const CODE = /`+/g;
const PAIRS = /\*{2,}|~{2,}/g; // the other may be in another sentence
const LEADS = /^[ \t]*(?:#{1,6}|\*)[ \t]+/gm;
const EMPHASIS = /(^|[^\p{L}\p{N}*])\*([^*\s](?:[^*\n]*[^*\s])?)\*(?![\p{L}\p{N}*])/gu;
const NUMERAL = /\p{N}/u;
const PAUSE = /^[^]*[，、：\s](?=[\p{L}\p{N}])/u;

export class Announcer {
  #region;
  #text = "";

  // region: an element with aria-live="polite" and aria-relevant="additions".
  constructor(region) {
    this.#region = region;
  }

  feed(text) {
    this.#text += text;
    let said = 0;
    SENTENCE.lastIndex = 0;
    while (SENTENCE.test(this.#text)) said = SENTENCE.lastIndex;
    if (said === 0 && this.#text.length > LONGEST) said = (PAUSE.exec(this.#text)?.[0] ?? this.#text).length;
    this.say(this.#text.slice(0, said));
    this.#text = this.#text.slice(said);
  }

  // What is left, and then a closing word.
  finish(word) {
    this.say(this.#text);
    this.#text = "";
    this.say(word);
  }

  // Nothing of what was said or begun is said any more.
  clear() {
    this.#text = "";
    this.#region.replaceChildren();
  }

  say(text) {
    const words = plain(text).trim();
    if (words === "") return;
    const line = this.#region.ownerDocument.createElement("p");
    line.textContent = words;
    this.#region.append(line);
    while (this.#region.childElementCount > KEPT) this.#region.firstElementChild.remove();
  }
}

// A text without Markdown's markers. No lookbehind: browsers of 2022 do not load a page with one.
export function plain(text) {
  return text.replace(CODE, "").replace(PAIRS, pair).replace(LEADS, "").replace(EMPHASIS, "$1$2");
}

// Between two numerals it is a sign of theirs.
function pair(marker, at, text) {
  const isNumeral = (place) => NUMERAL.test(text[place] ?? "");
  return isNumeral(at - 1) && isNumeral(at + marker.length) ? marker : "";
}
