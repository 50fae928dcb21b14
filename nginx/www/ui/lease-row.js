// One row of the table of streams. It shows one lease after the other, as the list is scrolled.

import { button, make, setAttribute, setText } from "./dom.js";
import { shortId } from "./format.js";
import { isBeingCut } from "./store.js";
import { coded, format, text } from "./texts.js";

const FLOWING_MS = 5000; // pages are some seconds old

export class LeaseRow {
  element = make("div", "row");
  lease = null;
  #index = -1;
  #pressed = null; // the lease that was under the pointer when it went down

  constructor(parent, id, { cut, copy, open }) {
    this.element.id = id;
    this.element.setAttribute("role", "row");
    const cell = (name) => {
      const made = make("div", `cell ${name}`, this.element);
      made.setAttribute("role", "gridcell");
      return made;
    };
    // A row may get another lease between a finger's going down and up.
    this.element.addEventListener("pointerdown", () => (this.#pressed = this.lease));
    const meant = (act) => (event) => {
      event.stopPropagation();
      const lease = event.detail === 0 ? this.lease : this.#pressed;
      if (lease) act(lease);
    };
    this.id = button("link id", cell("col-id"), "", meant(copy));
    this.place = cell("col-place");
    this.scene = cell("col-scene");
    this.tokens = cell("col-tokens number");
    this.age = cell("col-age number");
    this.bytes = cell("col-bytes number");
    this.idle = cell("col-idle");
    this.state = make("span", "chip", cell("col-state"));
    this.act = button("quiet danger", cell("col-act"), "", meant(cut));
    for (const each of [this.id, this.act]) each.tabIndex = -1; // the grid has the focus, and its keys
    this.element.addEventListener("click", meant(open));
    parent.append(this.element);
  }

  moveTo(index, rowHeight) {
    this.element.style.transform = `translateY(${index * rowHeight}px)`;
    if (this.#index === index) return;
    this.#index = index;
    this.element.setAttribute("aria-rowindex", String(index + 2)); // the head is the first
    this.element.classList.toggle("odd", index % 2 === 1);
  }

  // It shows nothing, until it is moved again.
  rest() {
    this.lease = null;
    this.element.hidden = true;
    setAttribute(this.element, "aria-selected", "false");
  }

  show(lease, { now, active, mayCut }) {
    this.lease = lease;
    setText(this.id, shortId(lease.id));
    setAttribute(this.id, "title", lease.id);
    setAttribute(this.id, "aria-label", text("copy", shortId(lease.id)));
    for (const [cell, words] of [[this.place, `${lease.pool}/${lease.backend}`], [this.scene, lease.scene]]) {
      setText(cell, words);
      setAttribute(cell, "title", words); // it may be longer than its column
    }
    setText(this.tokens, format.number(lease.tokens));
    setText(this.age, format.duration((now - lease.since) / 1000));
    this.#progress(lease, now);
    const state = stateOf(lease, now);
    setText(this.state, text(`state.name.${state}`));
    setAttribute(this.element, "data-state", state);
    setAttribute(this.element, "aria-selected", String(active));
    setText(this.act, text("cut"));
    setAttribute(this.act, "aria-label", text("cutThe", shortId(lease.id)));
    this.act.hidden = !mayCut || state === "cutting";
  }

  #progress(lease, now) {
    const { progress } = lease;
    setText(this.bytes, format.bytes(progress?.bytes));
    setAttribute(this.bytes, "title", eventsOf(progress));
    setText(this.idle, silence(lease, now));
    // Where the columns have no heads: it stands beside the age.
    setAttribute(this.idle, "data-head", isSilent(lease, now) ? text("col.idle") : "");
  }
}

// Of one that is being cut, that.
export function stateOf(lease, now) {
  return isBeingCut(lease, now) ? "cutting" : lease.state;
}

// How many events have passed; an answer may be none of them.
export function eventsOf(progress) {
  if (!progress) return text("unknown");
  return progress.events === null ? "" : text("events", format.number(progress.events));
}

function isSilent({ quietSince }, now) {
  return quietSince !== null && now - quietSince > FLOWING_MS;
}

// How long a stream has been silent, and where: what gateways say is a second or two old.
export function silence({ progress, quietSince }, now) {
  if (quietSince === null) return "–";
  const phase = progress.phase === "stream" ? "" : coded(`phase.${progress.phase}`);
  if (!isSilent({ quietSince }, now)) return phase || text("flowing");
  return [format.duration((now - quietSince) / 1000), phase].filter(Boolean).join(" · ");
}
