// The first look: what needs attention, and the totals.

import { attention } from "./attention.js";
import { button, make, setAttribute, setText } from "./dom.js";
import { lastMinute } from "./minutes.js";
import { format, text } from "./texts.js";

const MOST = 6;

export class AttentionView {
  #root;
  #store;
  #clock;
  #lead;
  #shown = "";

  // lead({ words, sort }): show these streams.
  constructor(root, store, clock, lead) {
    this.#root = root;
    this.#store = store;
    this.#clock = clock;
    this.#lead = lead;
  }

  show() {
    const found = attention(this.#store, this.#clock.now()).slice(0, MOST);
    const lines = found.map(({ name, values, level, lead }) => ({
      words: text(name, ...values.map(shown)),
      level,
      lead,
    }));
    // An unchanged list keeps its elements, and with them the focus.
    const now = JSON.stringify([text("calm"), lines]);
    if (now === this.#shown) return;
    this.#shown = now;
    const focused = this.#root.contains(document.activeElement);
    this.#root.replaceChildren(...(lines.length > 0 ? lines.map((line) => this.#line(line)) : [calm()]));
    if (focused) this.#root.querySelector("button")?.focus();
  }

  #line({ words, level, lead }) {
    const item = make("li", level);
    make("span", "mark", item).setAttribute("aria-hidden", "true");
    make("span", "words", item, words);
    if (lead) button("quiet", item, text("show"), () => this.#lead(lead));
    return item;
  }
}

function calm() {
  const item = make("li", "calm");
  make("span", "mark", item).setAttribute("aria-hidden", "true");
  make("span", "words", item, text("calm"));
  return item;
}

function shown(value) {
  if (typeof value === "number") return format.number(value);
  if (typeof value === "string") return value;
  return "share" in value ? format.percent(value.share) : format.duration(value.seconds);
}

export class TotalsView {
  #store;
  #parts;

  constructor(root, store) {
    this.#store = store;
    this.#parts = new Map(
      ["streams", "tokens", "draining", "waiting", "granted", "refused", "nodes"].map((name) => {
        const element = make("div", "", root);
        const [term, value] = [make("dt", "soft", element), make("dd", "", element)];
        return [name, { element, term, value: make("span", "", value), aside: make("span", "soft", value) }];
      }),
    );
  }

  show() {
    const { pools, nodes, points } = this.#store;
    const backends = pools.flatMap((pool) => pool.backends);
    const sum = (field) => backends.reduce((total, backend) => total + backend[field], 0);
    const silent = nodes.filter((node) => node.silent).length;
    const waiting = pools.reduce((total, pool) => total + pool.waiting, 0);
    const of = (limit) => text("of", format.number(limit));
    this.#say("streams", format.number(sum("streams")), of(sum("max_streams")));
    this.#say("tokens", format.number(sum("tokens")), of(sum("max_tokens")));
    this.#say("draining", format.number(sum("draining")));
    this.#say("waiting", format.number(waiting));
    this.#parts.get("waiting").element.hidden = waiting === 0;
    this.#say("granted", format.number(lastMinute(points, "granted")));
    this.#say("refused", format.number(lastMinute(points, "refused")));
    this.#say("nodes", format.number(nodes.length), silent > 0 ? text("sum.nodesSilent", format.number(silent)) : "");
    setAttribute(this.#parts.get("nodes").element, "data-urgent", String(silent > 0));
  }

  #say(name, value, aside = "") {
    const part = this.#parts.get(name);
    setText(part.term, text(`sum.${name}`));
    setText(part.value, value);
    setText(part.aside, aside);
  }
}
