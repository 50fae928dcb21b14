// Nodes: whether they are heard, their memory against its marks, how far their log is behind.

import { Keyed, make, setAttribute, setText, setWidth } from "./dom.js";
import { format, text } from "./texts.js";

const MARKS = { memory_alarm: 0.85, memory_full: 0.92 }; // where the configuration is not told
const LATE_S = 5; // a tailer that is so far behind is worth a look

export class NodesView {
  #store;
  #nodes;

  constructor(root, store) {
    this.#store = store;
    this.none = make("p", "soft", root);
    this.#nodes = new Keyed(make("div", "nodes", root), () => new NodeCard(store));
  }

  show() {
    const { nodes } = this.#store;
    setText(this.none, nodes.length === 0 ? text("nodes.none") : "");
    this.#nodes.show(nodes, (node) => node.name);
  }
}

class NodeCard {
  element = make("article", "node");
  #store;

  constructor(store) {
    this.#store = store;
    const head = make("div", "node-head", this.element);
    this.name = make("h3", "name", head);
    this.chip = make("span", "chip", head);
    this.leak = make("span", "chip urgent", head);
    const memory = make("div", "meter-row", this.element);
    this.label = make("span", "soft unit", memory);
    this.track = make("div", "meter", memory);
    this.track.setAttribute("role", "meter");
    this.track.setAttribute("aria-valuemin", "0");
    this.track.setAttribute("aria-valuemax", "100");
    this.used = make("span", "used", this.track);
    this.alarm = make("span", "limit", this.track);
    this.full = make("span", "limit", this.track);
    this.value = make("span", "value", memory);
    const facts = make("dl", "facts", this.element);
    this.facts = ["streams", "workers", "lag", "perStream"].map((name) => {
      const part = make("div", "", facts);
      return { name, part, term: make("dt", "soft", part), value: make("dd", "", part) };
    });
  }

  show(node) {
    setText(this.name, node.name);
    setAttribute(this.element, "data-state", node.silent ? "silent" : "up");
    const silent = node.silent && Boolean(node.agent);
    const told = silent ? text("node.silentFor", format.duration(node.silent_s)) : text(node.agent ? "node.up" : "node.noAgent");
    setText(this.chip, told);
    this.chip.classList.toggle("urgent", silent);
    this.leak.hidden = !node.memory?.leak_suspected;
    setText(this.leak, text("node.leak"));
    this.#memory(node);
    const lag = node.tailer?.lag_seconds ?? null;
    const values = {
      streams: format.number(node.streams),
      workers: format.number(node.sessions),
      lag: format.duration(lag),
      perStream: format.bytes(node.memory?.per_stream_bytes),
    };
    for (const { name, part, term, value } of this.facts) {
      setText(term, text(name));
      setText(value, values[name]);
      part.classList.toggle("late", name === "lag" && lag !== null && lag > LATE_S);
    }
  }

  #memory({ name, memory }) {
    const marks = { ...MARKS, ...this.#store.config?.effective?.agent };
    const share = memory && memory.limit_bytes > 0 ? memory.used_bytes / memory.limit_bytes : null;
    setText(this.label, text("memory"));
    setWidth(this.used, share ?? 0);
    setAttribute(this.track, "data-memory", memory?.state ?? "none");
    for (const [mark, at] of [[this.alarm, marks.memory_alarm], [this.full, marks.memory_full]]) {
      const left = `${at * 100}%`;
      if (mark.style.left !== left) mark.style.left = left;
    }
    const told = memory
      ? text("memory.value", format.bytes(memory.used_bytes), format.bytes(memory.limit_bytes), format.percent(share))
      : text("memory.none");
    setText(this.value, told);
    setAttribute(this.track, "aria-valuenow", String(Math.round((share ?? 0) * 100)));
    setAttribute(this.track, "aria-valuetext", memory ? `${told}, ${text(`memory.${memory.state}`)}` : told);
    const bar = memory
      ? text("memory.bar", name, format.bytes(memory.used_bytes), format.bytes(memory.limit_bytes),
          format.percent(marks.memory_alarm), format.percent(marks.memory_full))
      : `${name}: ${text("memory")}`;
    setAttribute(this.track, "aria-label", bar);
    setAttribute(this.track, "title", memory ? bar : "");
  }
}
