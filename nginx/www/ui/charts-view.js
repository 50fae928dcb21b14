// Ends and refusals a minute: small columns, and the same as a table.

import { draw, make, setAttribute, setText } from "./dom.js";
import { ENDED, MINUTES, REFUSED, counted, sums } from "./minutes.js";
import { coded, format, text } from "./texts.js";

const HEIGHT = 64;
const STEP = 10;
const GAP = 2;

export class ChartsView {
  #store;
  #charts;

  constructor(root, store) {
    this.#store = store;
    this.#charts = [new Chart(root, ENDED), new Chart(root, REFUSED)];
  }

  show() {
    for (const chart of this.#charts) chart.show(this.#store.points);
  }
}

class Chart {
  #what;

  constructor(root, what) {
    this.#what = what;
    const figure = make("figure", "chart", root);
    const caption = make("figcaption", "", figure);
    this.title = make("h3", "", caption);
    this.most = make("span", "soft", caption);
    this.svg = draw("svg", { viewBox: `0 0 ${MINUTES * STEP} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, figure);
    const axis = make("div", "axis soft", figure);
    axis.setAttribute("aria-hidden", "true");
    this.from = make("span", "", axis);
    this.to = make("span", "", axis);
    this.legend = make("ul", "legend", figure);
    this.legend.setAttribute("role", "list");
    const details = make("details", "", figure);
    this.summary = make("summary", "", details);
    this.table = make("table", "", make("div", "table-box", details));
    details.addEventListener("toggle", () => this.#tabulate());
    this.details = details;
  }

  show(points) {
    const name = text(`chart.${this.#what.of}`);
    const places = counted(points, this.#what);
    const most = Math.max(0, ...places.map((place) => (place ? total(place) : 0)));
    this.points = points;
    setText(this.title, name);
    setText(this.most, text("chart.most", format.number(most)));
    setText(this.from, text("chart.ago", format.number(MINUTES)));
    setText(this.to, text("chart.now"));
    setText(this.summary, text("chart.table"));
    this.#columns(places, Math.max(most, 1));
    const told = this.#tell(places);
    setAttribute(this.svg, "aria-label", text("chart.label", name, format.number(MINUTES), told));
    this.#tabulate();
  }

  #columns(places, most) {
    this.svg.replaceChildren();
    places.forEach((place, index) => {
      if (!place) return;
      const column = draw("g", {}, this.svg);
      draw("title", {}, column).textContent = this.#told(place);
      const x = index * STEP + GAP / 2;
      draw("rect", { x: index * STEP, y: 0, width: STEP, height: HEIGHT, class: "ground" }, column);
      let y = HEIGHT;
      for (const kind of this.#what.kinds) {
        const height = (place.counts[kind] / most) * HEIGHT;
        if (height === 0) continue;
        y -= height;
        draw("rect", { x, y, width: STEP - GAP, height, class: `kind-${kind}` }, column);
      }
    });
  }

  // The sums by kind, as a legend; returns them in words.
  #tell(places) {
    const items = this.#what.kinds.map((kind) => {
      const number = places.reduce((sum, place) => sum + (place?.counts[kind] ?? 0), 0);
      return { kind, words: text("chart.sum", text(`kind.${kind}`), format.number(number)) };
    });
    this.legend.replaceChildren(
      ...items.map(({ kind, words }) => {
        const item = make("li", `kind-${kind}`);
        make("span", "swatch", item).setAttribute("aria-hidden", "true");
        make("span", "", item, words);
        return item;
      }),
    );
    return items.map(({ words }) => words).join(", ");
  }

  #told({ at, counts }) {
    const parts = this.#what.kinds.filter((kind) => counts[kind] > 0);
    const words = parts.map((kind) => text("chart.sum", text(`kind.${kind}`), format.number(counts[kind])));
    return `${format.minute(at)} · ${words.join(", ") || text("chart.none")}`;
  }

  // Made only while it is open: nobody reads sixty rows that are folded away.
  #tabulate() {
    this.table.replaceChildren();
    if (!this.details.open) return;
    const codes = sums(this.points, this.#what).map(([code]) => code);
    const head = make("tr", "", make("thead", "", this.table));
    for (const words of [text("chart.minute"), ...codes.map(coded)]) {
      make("th", "", head, words).scope = "col";
    }
    const body = make("tbody", "", this.table);
    for (const point of [...this.points].reverse()) {
      const row = make("tr", "", body);
      make("th", "", row, format.minute(point.at)).scope = "row";
      for (const code of codes) make("td", "", row, format.number(point[this.#what.of]?.[code] ?? 0));
    }
  }
}

const total = ({ counts }) => Object.values(counts).reduce((sum, number) => sum + number, 0);
