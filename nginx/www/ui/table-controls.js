// What stands above the table of streams: words, pool, state, order, and how many there are.

import { make, setText } from "./dom.js";
import { COLUMNS } from "./selection.js";
import { format, text } from "./texts.js";

const find = (id) => document.getElementById(id);

export class TableControls {
  #grid;
  #store;
  #asked;

  // asked(): something else is to be shown.
  constructor(grid, store, asked) {
    this.#grid = grid;
    this.#store = store;
    this.#asked = asked;
    find("words").addEventListener("input", ({ target }) => this.ask({ words: target.value }));
    find("pool").addEventListener("change", ({ target }) => this.ask({ pool: target.value }));
    find("state").addEventListener("change", ({ target }) => this.ask({ state: target.value }));
    find("sort").addEventListener("change", ({ target }) => {
      const [by, way] = target.value.split(" ");
      this.ask({ by, down: way === "down" });
    });
  }

  ask(change) {
    this.#grid.ask(change);
    this.#asked();
  }

  show() {
    const { words, pool, state, by, down } = this.#grid.asked;
    const pools = this.#store.pools.map(({ name }) => name);
    offer(find("pool"), ["", ...pools], (name) => name || text("allPools"));
    offer(find("state"), ["", "active", "draining"], (name) => text(name ? `state.name.${name}` : "allStates"));
    offer(find("sort"), COLUMNS.flatMap((column) => [`${column} down`, `${column} up`]), (order) => {
      const [column, way] = order.split(" ");
      return `${text(`col.${column}`)} ${way === "down" ? "↓" : "↑"}`;
    });
    const chosen = { words, pool, state, sort: `${by} ${down ? "down" : "up"}` };
    for (const [id, value] of Object.entries(chosen)) if (find(id).value !== value) find(id).value = value;
    const [shown, all] = [this.#grid.order.length, this.#store.leases.size];
    const counts = [shown, all].map((count) => format.number(count));
    setText(find("count"), shown === all ? text("count.all", counts[1]) : text("count.some", ...counts));
  }
}

// The options of a select; written only where they are others than before.
function offer(select, values, words) {
  const now = values.map((value) => `${value} ${words(value)}`).join();
  if (select.dataset.now === now) return;
  select.dataset.now = now;
  const chosen = select.value;
  select.replaceChildren(...values.map((value) => Object.assign(make("option", "", null, words(value)), { value })));
  select.value = values.includes(chosen) ? chosen : values[0];
}
