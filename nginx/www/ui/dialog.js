// Dialogs that say what will happen before it does, and what the service said after.

import { button, make, setText } from "./dom.js";
import { text } from "./texts.js";

let opened = 0;

// Opens a dialog. Escape and the close button close it, and the focus goes back where it was.
export class Dialog {
  element = make("dialog", "", document.body);
  #allowed = true;
  #busy = false;

  constructor(title, closed = () => {}) {
    const id = `dialog-${++opened}`;
    this.title = make("h2", "", this.element, title);
    this.title.id = id;
    this.element.setAttribute("aria-labelledby", id);
    this.form = make("form", "", this.element);
    this.form.method = "dialog";
    this.body = make("div", "dialog-body", this.form);
    this.fault = make("p", "fault", this.form);
    this.fault.setAttribute("role", "alert");
    this.foot = make("div", "dialog-foot", this.form);
    this.closeButton = button("quiet", this.foot, text("close"), () => this.element.close());
    this.element.addEventListener("close", () => {
      this.element.remove();
      closed();
    });
    // A press outside is no answer to a question: only what has none is closed by it.
    this.element.addEventListener("pointerdown", (event) => {
      if (event.target === this.element && !this.doButton) this.element.close();
    });
  }

  open() {
    this.element.showModal();
    return this;
  }

  close() {
    this.element.close();
  }

  // A button that does something that takes a while; act() may throw what describe() has words for.
  offer(words, act, { danger = false } = {}) {
    setText(this.closeButton, text("cancel"));
    this.doButton = make("button", danger ? "primary danger" : "primary", this.foot, words);
    this.allow(this.#allowed);
    this.form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (this.doButton.disabled) return;
      this.#busy = true;
      this.allow(this.#allowed);
      setText(this.fault, "");
      try {
        await act();
      } catch (error) {
        setText(this.fault, describe(error));
      } finally {
        this.#busy = false;
        this.allow(this.#allowed);
        // A disabled button has lost the focus.
        if (this.element.open && !this.element.contains(document.activeElement)) this.doButton.focus();
      }
    });
    return this;
  }

  // Whether it makes sense to do it now. Not while it is being done.
  allow(sense) {
    this.#allowed = sense;
    if (this.doButton) this.doButton.disabled = this.#busy || !sense;
  }

  // What will happen, a sentence each.
  tell(sentences) {
    this.told ??= this.#tellings();
    const lines = sentences.map((words) => make("li", "", null, words));
    if (this.told.textContent === lines.map((line) => line.textContent).join("")) return;
    this.told.replaceChildren(...lines);
  }

  #tellings() {
    const list = make("ul", "told", this.body);
    list.setAttribute("role", "list");
    list.setAttribute("aria-live", "polite");
    return list;
  }
}

// Why something was not done, in words.
export function describe(error) {
  if (error?.status === 403) return text("forbidden", error.detail);
  if (error?.status === 0) return text("unreachable");
  if (typeof error?.told === "string") return error.told;
  return text("failed", error?.detail || error?.code || String(error));
}
