// Pools with their last hour, and backends as bars of streams and tokens against their limits.

import { Keyed, button, make, setAttribute, setText, setWidth } from "./dom.js";
import { HeatStrip } from "./heat-strip.js";
import { limitOf } from "./store.js";
import { format, text } from "./texts.js";

const STATES = { active: ["draining", "disabled"], draining: ["active", "disabled"], disabled: ["active"] };

export class PoolsView {
  #store;
  #pools;

  // actions: limits(pool, backend), state(pool, backend, state), list(pool, backend).
  constructor(root, store, actions) {
    this.#store = store;
    this.#pools = new Keyed(root, () => new PoolCard(store, actions));
  }

  show() {
    this.#pools.show(this.#store.pools, (pool) => pool.name);
  }
}

class PoolCard {
  element = make("article", "pool");
  #store;
  #backends;

  constructor(store, actions) {
    this.#store = store;
    const head = make("div", "pool-head", this.element);
    this.name = make("h3", "name", head);
    this.sum = make("p", "soft", head);
    this.heat = new HeatStrip(head);
    const list = make("ul", "backends", this.element);
    list.setAttribute("role", "list");
    this.#backends = new Keyed(list, () => new BackendRow(store, actions, () => this.pool));
  }

  show(pool) {
    this.pool = pool.name;
    setText(this.name, pool.name);
    const limit = limitOf(pool.backends, "max_streams");
    const parts = [text("pool.sum", format.number(pool.streams), format.number(limit))];
    if (pool.waiting > 0) parts.push(text("pool.waiting", format.number(pool.waiting)));
    setText(this.sum, parts.join(" · "));
    this.heat.show(pool.name, this.#store.points);
    this.#backends.show(pool.backends, (backend) => backend.name);
  }
}

class BackendRow {
  element = make("li", "backend");
  #store;
  #actions;
  #pool;
  #state = "";

  constructor(store, actions, pool) {
    this.#store = store;
    this.#actions = actions;
    this.#pool = pool;
    const head = make("div", "backend-head", this.element);
    this.name = button("name link", head, "", () => actions.list(pool(), this.backend.name));
    this.chip = make("span", "chip", head);
    this.aside = make("span", "soft aside", head);
    const bars = make("div", "bars", this.element);
    this.streams = new Bar(bars, "streams");
    this.tokens = new Bar(bars, "tokens");
    this.file = make("p", "soft file", bars);
    this.buttons = make("div", "actions", this.element);
    this.limits = button("quiet", this.buttons, "", () => actions.limits(pool(), this.backend.name));
    this.states = make("span", "actions", this.buttons);
  }

  show(backend) {
    this.backend = backend;
    const place = `${this.#pool()}/${backend.name}`;
    setText(this.name, backend.name);
    setAttribute(this.name, "aria-label", text("backend.list", place));
    setAttribute(this.name, "title", text("backend.list", place));
    setAttribute(this.element, "data-state", backend.state);
    const lost = backend.state === "active" && backend.unreachable === true;
    setText(this.chip, text(`state.name.${lost ? "unreachable" : backend.state}`));
    this.chip.classList.toggle("urgent", lost);
    const drained = backend.state !== "active" && backend.streams === 0;
    const ending = backend.draining > 0 ? text("backend.ending", format.number(backend.draining)) : "";
    setText(this.aside, drained ? text("backend.drained") : ending);
    const file = backend.configured;
    this.streams.show(backend.name, backend.streams, backend.max_streams, backend.draining, file?.max_streams);
    this.tokens.show(backend.name, backend.tokens, backend.max_tokens, 0, file?.max_tokens);
    const told = file ? ofFile(backend, file) : "";
    setText(this.file, told);
    setAttribute(this.file, "title", told ? text("backend.fileTip") : "");
    this.#offer(backend, place);
  }

  #offer(backend, place) {
    this.limits.hidden = !this.#store.may("limits");
    this.states.hidden = !this.#store.may("state");
    setText(this.limits, text("do.limits"));
    setAttribute(this.limits, "aria-label", text("do.limitsOf", place));
    if (this.#state !== backend.state) {
      const focused = this.states.contains(document.activeElement);
      this.states.replaceChildren();
      this.#state = backend.state;
      for (const state of STATES[backend.state] ?? []) {
        const change = button("quiet", this.states, "", () => this.#actions.state(this.#pool(), backend.name, state));
        change.dataset.to = state;
      }
      if (focused) this.states.firstElementChild?.focus();
    }
    for (const change of this.states.children) {
      setText(change, text(`do.${change.dataset.to}`));
      setAttribute(change, "aria-label", text(`do.${change.dataset.to}Of`, place));
    }
  }
}

// The limits that weir.yml has and the backend has not.
function ofFile(backend, file) {
  const differs = ["max_streams", "max_tokens"].filter((limit) => backend[limit] !== file[limit]);
  if (differs.length === 0) return "";
  return text("backend.file", differs.map((limit) => `${format.number(file[limit])} ${text(limit)}`).join(", "));
}

// What is in use, the part of it that is ending, the limit, and the file's limit where it differs.
class Bar {
  #unit;

  constructor(parent, unit) {
    this.#unit = unit;
    const row = make("div", "meter-row", parent);
    this.label = make("span", "soft unit", row);
    this.track = make("div", "meter", row);
    this.track.setAttribute("role", "meter");
    this.track.setAttribute("aria-valuemin", "0");
    this.used = make("span", "used", this.track);
    this.ending = make("span", "ending", this.track);
    this.over = make("span", "over", this.track);
    this.beyond = make("span", "beyond", this.track);
    this.limit = make("span", "limit", this.track);
    this.file = make("span", "limit of-file", this.track);
    this.value = make("span", "value", row);
  }

  show(name, used, limit, ending, file = limit) {
    const whole = Math.max(used, limit, file, 1);
    setText(this.label, text(this.#unit));
    setText(this.value, `${format.number(used)} / ${format.number(limit)}`);
    const within = Math.min(used, limit);
    setWidth(this.used, (within - Math.min(ending, within)) / whole);
    setWidth(this.ending, Math.min(ending, within) / whole);
    setWidth(this.over, Math.max(0, used - limit) / whole);
    this.#mark(this.beyond, limit, whole, used > limit);
    this.#mark(this.limit, limit, whole);
    this.#mark(this.file, file, whole, file === limit);
    const numbers = [format.number(used), format.number(limit), text(this.#unit)];
    const told = ending > 0 ? text("bar.value", ...numbers, format.number(ending)) : text("bar.plain", ...numbers);
    setAttribute(this.track, "aria-label", `${name}: ${text(this.#unit)}`);
    setAttribute(this.track, "aria-valuenow", String(used));
    setAttribute(this.track, "aria-valuemax", String(whole));
    setAttribute(this.track, "aria-valuetext", told);
    setAttribute(this.track, "title", told);
  }

  #mark(element, at, whole, hidden = false) {
    element.hidden = hidden || at >= whole; // the end of the bar shows it by itself
    const left = `${(at / whole) * 100}%`;
    if (element.style.left !== left) element.style.left = left;
  }
}
