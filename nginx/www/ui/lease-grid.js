// The table of streams: ten thousand of them, and as many rows as are seen.
//
// The grid itself has the focus, and one row is the active one: rows come and go under it.

import { button, make, setAttribute, setText } from "./dom.js";
import { LeaseRow } from "./lease-row.js";
import { Selection } from "./selection.js";
import { text } from "./texts.js";
import { revealing, rowAfter, rowsInView } from "./virtual.js";

const HEADS = ["id", "place", "scene", "tokens", "age", "bytes", "idle", "state"];
const FALLING = new Set(["tokens", "age", "bytes", "idle"]); // the greatest first, at first

export class LeaseGrid {
  order = [];
  #root;
  #store;
  #clock;
  #on;
  #selection = new Selection();
  #asked = { words: "", pool: "", state: "", by: "age", down: true };
  #rows = new Map(); // index -> LeaseRow
  #spare = [];
  #made = 0;
  #active = null; // the id of the active row's lease
  #activeAt = 0; // where it was last: keys go on from there
  #size = { height: 0, rowHeight: 0 };

  // on: cut(lease), copy(lease), open(lease), sorted(), moved() (what is to be seen changes).
  constructor(root, store, clock, on) {
    this.#root = root;
    this.#store = store;
    this.#clock = clock;
    this.#on = on;
    root.setAttribute("role", "grid");
    root.tabIndex = 0;
    this.box = make("div", "box", root);
    this.box.setAttribute("role", "rowgroup");
    this.box.tabIndex = -1;
    const head = make("div", "row head", this.box);
    head.setAttribute("role", "row");
    head.setAttribute("aria-rowindex", "1");
    this.heads = HEADS.map((by) => this.#head(head, by));
    this.acts = make("div", "cell col-act", head);
    this.acts.setAttribute("role", "columnheader");
    this.space = make("div", "space", this.box);
    this.space.setAttribute("role", "presentation");
    this.head = head;
    this.none = make("p", "none", root.parentElement);
    this.hint = make("p", "hint soft", root.parentElement);
    this.hint.id = "grid-hint";
    root.setAttribute("aria-describedby", this.hint.id);
    root.setAttribute("aria-labelledby", "leases-title");
    this.box.addEventListener("scroll", () => on.moved());
    this.box.addEventListener("focus", () => root.focus({ preventScroll: true })); // by a click
    root.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => on.moved()).observe(this.box);
  }

  // The ids of the leases that are seen.
  get seen() {
    return [...this.#rows.values()].map((row) => row.lease.id);
  }

  get asked() {
    return this.#asked;
  }

  // Shows what { words, pool, state, by, down } asks for, the parts that are not given as before.
  ask(change) {
    this.#asked = { ...this.#asked, ...change };
    if ("by" in change && !("down" in change)) this.#asked.down = FALLING.has(change.by);
    this.box.scrollTop = 0;
    this.show();
  }

  // Anew: leases have come, gone or changed.
  show() {
    this.order = this.#selection.of(this.#store.leases, this.#asked);
    this.#labels();
    this.move();
  }

  // The rows that are seen: it was scrolled, or a second has passed.
  move() {
    const style = getComputedStyle(this.#root);
    // The head stays at the top of the box, over the rows.
    const height = this.box.clientHeight - this.head.offsetHeight;
    this.#size = { height, rowHeight: parseFloat(style.getPropertyValue("--row")) || 34 };
    const count = this.order.length;
    const { rowHeight } = this.#size;
    const whole = `${count * rowHeight}px`;
    if (this.space.style.height !== whole) this.space.style.height = whole;
    const { first, end } = rowsInView({ top: this.box.scrollTop, count, ...this.#size });
    for (const [index, row] of this.#rows) {
      if (index >= first && index < end) continue;
      this.#rows.delete(index);
      this.#spare.push(row);
    }
    const now = this.#clock.now();
    const mayCut = this.#store.may("cut");
    let active = null;
    for (let index = first; index < end; index += 1) {
      const lease = this.order[index];
      const row = this.#rows.get(index) ?? this.#row(index);
      row.moveTo(index, rowHeight);
      row.show(lease, { now, mayCut, active: lease.id === this.#active });
      if (lease.id === this.#active) active = row.element.id;
    }
    for (const row of this.#spare) row.rest();
    if (active) setAttribute(this.#root, "aria-activedescendant", active);
    else this.#root.removeAttribute("aria-activedescendant");
  }

  #row(index) {
    const row = this.#spare.pop() ?? new LeaseRow(this.space, `row-${this.#made++}`, this.#on);
    row.element.hidden = false;
    this.#rows.set(index, row);
    return row;
  }

  #head(parent, by) {
    const head = make("div", `cell col-${by}`, parent);
    head.setAttribute("role", "columnheader");
    const sort = button("sort", head, "", () => {
      const down = this.#asked.by === by ? !this.#asked.down : FALLING.has(by);
      this.ask({ by, down });
      this.#on.sorted();
    });
    return { by, head, sort };
  }

  #labels() {
    for (const { by, head, sort } of this.heads) {
      setText(sort, text(`col.${by}`));
      const sorted = by === this.#asked.by ? (this.#asked.down ? "descending" : "ascending") : "none";
      setAttribute(head, "aria-sort", sorted);
    }
    setText(this.acts, this.#store.may("cut") ? text("col.act") : "");
    setText(this.hint, text("grid.hint"));
    setAttribute(this.#root, "aria-rowcount", String(this.order.length + 1));
    const empty = this.order.length === 0;
    this.none.hidden = !empty;
    setText(this.none, empty ? text(this.#store.leases.size === 0 ? "none" : "noneFits") : "");
  }

  // -- keys --------------------------------------------------------------------------------------

  #key(event) {
    if (event.target !== this.#root || event.ctrlKey || event.metaKey || event.altKey) return;
    const { count, at, page } = this.#place();
    const next = rowAfter(event.key, at, { count, page });
    // A lease that has ended is not followed by another under the same finger.
    const lease = this.#active && this.#store.leases.get(this.#active);
    if (next !== null) this.#activate(next);
    else if (lease && event.key === "Enter") this.#on.open(lease);
    else if (lease && event.key === "Delete") this.#on.cut(lease);
    else if (lease && event.key === "c") this.#on.copy(lease);
    else return;
    event.preventDefault();
  }

  #place() {
    const { height, rowHeight } = this.#size;
    const index = this.order.findIndex((lease) => lease.id === this.#active);
    const at = index >= 0 ? index : this.#activeAt - 0.5;
    return { count: this.order.length, at, page: Math.max(1, Math.floor(height / rowHeight) - 1) };
  }

  #activate(index) {
    this.#active = this.order[index].id;
    this.#activeAt = index;
    this.box.scrollTop = revealing(index, { top: this.box.scrollTop, ...this.#size });
    this.move();
  }
}
