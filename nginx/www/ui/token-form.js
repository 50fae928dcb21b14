// Asks for a token, where the service does.

import { isToken } from "./api.js";
import { setText } from "./dom.js";
import { format, text } from "./texts.js";

export class TokenForm {
  #form;
  #input;
  #fault;

  // given(token): try it.
  constructor(form, given) {
    this.#form = form;
    this.#input = form.querySelector("input");
    this.#fault = form.querySelector(".fault");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const token = this.#input.value.trim();
      if (!isToken(token)) {
        this.#say(text("token.shape"));
        return;
      }
      given(token);
    });
  }

  // shown: one was, and is not taken, or no longer. A first 401 is no fault of who looks.
  ask(error, shown) {
    const throttled = error?.code === "throttled";
    const wrong = shown ? text("token.wrong") : "";
    this.#form.hidden = false;
    this.#say(throttled ? text("token.throttled", format.duration(error.retryS ?? 1)) : wrong);
    this.#input.select();
    this.#input.focus();
  }

  // It fits, or is no longer wanted.
  done() {
    this.#form.hidden = true;
    this.#input.value = "";
    this.#say("");
  }

  #say(words) {
    setText(this.#fault, words);
    this.#input.setAttribute("aria-invalid", String(words !== ""));
  }
}
