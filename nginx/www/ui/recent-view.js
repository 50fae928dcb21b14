// The newest events, in words.

import { make, setText } from "./dom.js";
import { shortId } from "./format.js";
import { coded, format, text } from "./texts.js";

const SHOWN = 60;
const URGENT_ENDS = new Set(["upstream_error", "upstream_truncated", "timeout", "lost"]);
const SETTINGS = ["max_streams", "max_tokens", "state"];

export class RecentView {
  #list;
  #which;
  #store;

  constructor(list, which, store, redraw) {
    this.#list = list;
    this.#which = which;
    this.#store = store;
    for (const value of ["matter", "all"]) make("option", "", which).value = value;
    which.addEventListener("change", redraw);
  }

  show() {
    for (const option of this.#which.options) setText(option, text(`recent.${option.value}`));
    const events = this.#which.value === "all" ? this.#store.news.all : this.#store.news.recent;
    const items = events.slice(0, SHOWN).map((event) => {
      const item = make("li");
      make("time", "soft", item, format.time(event.data.at));
      make("span", isUrgent(event) ? "urgent" : "", item, inWords(event));
      return item;
    });
    if (items.length === 0) items.push(make("li", "soft", null, text("recent.none")));
    this.#list.replaceChildren(...items);
  }
}

function isUrgent({ kind, data }) {
  if (kind === "ended") return URGENT_ENDS.has(data.verdict);
  return (kind === "node" && data.state === "silent") || (kind === "alarm" && data.state === "raised");
}

// An event as a sentence.
export function inWords({ kind, data }) {
  const place = `${data.pool}/${data.backend}`;
  switch (kind) {
    case "granted":
      return text("event.granted", shortId(data.id), place, format.number(data.tokens));
    case "draining":
      return text("event.draining", shortId(data.id), place, coded(data.verdict));
    case "ended":
      return text("event.ended", shortId(data.id), place, coded(data.verdict), format.duration(data.age_s));
    case "refused":
      return text("event.refused", data.pool, coded(data.reason), format.number(data.count ?? 1));
    case "moved":
      return text("event.moved", shortId(data.id), place);
    case "limits":
      return text("event.limits", place, differences(data.before, data.after), data.who ?? "–");
    case "node":
      return text(`event.node.${data.state}`, data.node);
    case "alarm":
      return text(`event.alarm.${data.state}`, [data.node ?? data.pool, coded(data.alarm), data.detail].filter(Boolean).join(" · "));
    default:
      return kind;
  }
}

// What of a backend's settings differs, in words; "" where nothing does.
export function differences(before, after) {
  const shown = (name, value) => (name === "state" ? text(`state.name.${value}`) : format.number(value));
  return SETTINGS.filter((name) => name in after && before[name] !== after[name])
    .map((name) => text("event.change", text(name), shown(name, before[name]), shown(name, after[name])))
    .join(", ");
}
