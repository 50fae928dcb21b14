// What a screen reader is told of an answer that is being typed: whole sentences, and how it
// ended. Each character would be noise, and the whole at the end minutes late.

const SENTENCE = /[^]*?(?:[。！？!?\n]+|[.;；]\s)/y;
const LONGEST = 300; // characters without an end of sentence
const KEPT = 30; // sentences; older ones have been read
const SIGNS = /[*`#~]+/g;

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
    if (said === 0 && this.#text.length > LONGEST) said = this.#text.length;
    this.say(this.#text.slice(0, said));
    this.#text = this.#text.slice(said);
  }

  // What is left, and then a closing word.
  finish(word) {
    this.say(this.#text);
    this.#text = "";
    this.say(word);
  }

  say(text) {
    const plain = text.replace(SIGNS, "").trim();
    if (plain === "") return;
    const line = this.#region.ownerDocument.createElement("p");
    line.textContent = plain;
    this.#region.append(line);
    while (this.#region.childElementCount > KEPT) this.#region.firstElementChild.remove();
  }
}
