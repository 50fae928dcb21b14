// What has changed is drawn with the next frame, however often it changed since the last.

export class Frames {
  #draws = new Map(); // part -> Set of what draws it
  #dirty = new Set();
  #asked = false;
  #request;

  constructor(request = (callback) => requestAnimationFrame(callback)) {
    this.#request = request;
  }

  // Has `draw` called whenever one of the parts has changed. Returns what undoes it.
  on(parts, draw) {
    for (const part of parts) {
      if (!this.#draws.has(part)) this.#draws.set(part, new Set());
      this.#draws.get(part).add(draw);
    }
    return () => parts.forEach((part) => this.#draws.get(part).delete(draw));
  }

  mark(part) {
    this.#dirty.add(part);
    if (this.#asked) return;
    this.#asked = true;
    this.#request(() => this.#draw());
  }

  markAll() {
    for (const part of this.#draws.keys()) this.mark(part);
  }

  #draw() {
    const draws = new Set();
    for (const part of this.#dirty) for (const draw of this.#draws.get(part) ?? []) draws.add(draw);
    this.#dirty.clear();
    this.#asked = false;
    for (const draw of draws) {
      try {
        draw();
      } catch (error) {
        reportError(error); // a defect in one part leaves the others true
      }
    }
  }
}
