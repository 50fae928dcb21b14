// The first look: what needs attention, and the totals.

import { attention } from "./attention.js";
import { button, make, setAttribute, setText } from "./dom.js";
import { lastMinute } from "./minutes.js";
import { limitOf } from "./store.js";
import { format, text } from "./texts.js";

const MOST = 6;

export class AttentionView {
  #root;
  #announced;
  #store;
  #clock;
  #lead;
  #shown = "";
  #known = new Set(); // what is urgent, and was said

  // lead({ words, sort }): show these streams.
  // announced: where a screen reader is told of what is new and urgent.
  constructor(root, announced, store, clock, lead) {
    this.#root = root;
    this.#announced = announced;
    this.#store = store;
    this.#clock = clock;
    this.#lead = lead;
  }

  show() {
    const found = attention(this.#store, this.#clock.now());
    this.#announce(found.filter(({ level }) => level === "urgent"));
    const lines = found.slice(0, MOST).map(({ name, values, level, lead }) => ({
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

  // Once for each, however its numbers change; a tab that is not looked at shows how many there are.
  #announce(urgent) {
    const known = new Set();
    for (const { name, values } of urgent) {
      const key = `${name} ${values[0]}`;
      known.add(key);
      if (!this.#known.has(key)) make("p", "", this.#announced, text(name, ...values.map(shown)));
    }
    this.#known = known;
    while (this.#announced.childElementCount > MOST) this.#announced.firstElementChild.remove();
    const title = known.size > 0 ? `(${format.number(known.size)}) ${text("title")}` : text("title");
    if (document.title !== title) document.title = title;
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
    const silent = nodes.filter((node) => node.silent && node.agent).length;
    const waiting = pools.reduce((total, pool) => total + pool.waiting, 0);
    const of = (limit) => text("of", format.number(limit));
    this.#say("streams", format.number(sum("streams")), of(limitOf(backends, "max_streams")));
    this.#say("tokens", format.number(sum("tokens")), of(limitOf(backends, "max_tokens")));
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
