// What a page says, in more than one language. An element that has been given a text keeps its
// name, so that a change of language reaches it wherever it stands.

const ATTRIBUTES = { placeholder: "placeholder", label: "aria-label", tip: "title" };

export class Language {
  #texts;
  #stored;
  #current;
  #said = new WeakMap(); // element -> what its text is filled in with

  // texts: language -> name -> text, with {0} for the first value. stored: where the choice is
  // kept. preferred: the language of who has chosen none.
  constructor(texts, { stored, preferred }) {
    this.#texts = texts;
    this.#stored = stored;
    this.#current = this.#or(preferred);
  }

  get current() {
    return this.#current;
  }

  get other() {
    return Object.keys(this.#texts).find((language) => language !== this.#current);
  }

  // What was chosen last time, else what is preferred.
  get chosen() {
    try {
      return this.#or(localStorage.getItem(this.#stored));
    } catch {
      return this.#current;
    }
  }

  knows(name) {
    return Object.hasOwn(this.#texts[this.#current], name);
  }

  // A text by its name; a name that is none (an engine's own code) stands for itself. Values go
  // in as they are; a function is asked each time.
  text(name, ...values) {
    const found = this.knows(name) ? this.#texts[this.#current][name] : name;
    return found.replace(/\{(\d)\}/g, (_, index) => {
      const value = values[index];
      return String(typeof value === "function" ? value() : value);
    });
  }

  // Gives an element a text by name.
  say(element, name, ...values) {
    element.dataset.text = name;
    this.#said.set(element, values);
    element.textContent = this.text(name, ...values);
  }

  // Changes the language of all that has a text, a placeholder, a label or a tip by name.
  speak(wanted, root = document) {
    this.#current = this.#or(wanted);
    root.documentElement.lang = this.#current === "zh" ? "zh-CN" : this.#current;
    for (const element of root.querySelectorAll("[data-text]")) {
      const values = this.#said.get(element) ?? [];
      element.textContent = this.text(element.dataset.text, ...values);
    }
    for (const [name, attribute] of Object.entries(ATTRIBUTES)) {
      for (const element of root.querySelectorAll(`[data-${name}]`)) {
        element.setAttribute(attribute, this.text(element.dataset[name]));
      }
    }
    try {
      localStorage.setItem(this.#stored, this.#current);
    } catch {
      // A browser that stores nothing asks again next time.
    }
  }

  #or(wanted) {
    return Object.hasOwn(this.#texts, wanted) ? wanted : (this.#current ?? "zh");
  }
}
