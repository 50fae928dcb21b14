// The last hour of a pool, a cell a minute: how near it came to its limits.

import { make, setAttribute } from "./dom.js";
import { minutesOf } from "./minutes.js";
import { format, text } from "./texts.js";

const STEPS = 8;

export class HeatStrip {
  #cells;

  constructor(parent) {
    this.element = make("div", "heat", parent);
    this.element.setAttribute("role", "img");
    this.#cells = Array.from({ length: 60 }, () => make("span", "", this.element));
  }

  show(pool, points) {
    const minutes = minutesOf(points);
    let most = null;
    minutes.forEach((point, index) => {
      const share = point ? utilisation(point.pools?.[pool]) : null;
      const cell = this.#cells[index];
      const step = share === null ? "none" : String(Math.min(STEPS, Math.ceil(share * STEPS)));
      setAttribute(cell, "data-heat", step);
      setAttribute(cell, "title", share === null ? "" : `${format.minute(point.at)} · ${format.percent(share)}`);
      if (share !== null && (most === null || share > most.share)) most = { share, at: point.at };
    });
    const last = utilisation(minutes.at(-1)?.pools?.[pool]);
    const told = most
      ? text("pool.heat", format.percent(most.share), format.minute(most.at), format.percent(last ?? 0))
      : text("pool.heatNone");
    setAttribute(this.element, "aria-label", `${pool}, ${text("pool.hour")}: ${told}`);
  }
}

// Of the limit that was nearest; null where nothing is known.
export function utilisation(minute) {
  if (!minute) return null;
  const shares = [
    [minute.streams_max, minute.streams_limit],
    [minute.tokens_max, minute.tokens_limit],
  ].filter(([, limit]) => limit > 0);
  return shares.length === 0 ? null : Math.max(...shares.map(([used, limit]) => used / limit));
}
