// One question and its answer on the page. All that comes from outside goes in as text.

import { known, say, text } from "./texts.js";

function make(tag, className, parent) {
  const element = document.createElement(tag);
  element.className = className;
  parent.append(element);
  return element;
}

export class Turn {
  #answer;
  #body;
  #typed; // one text node, that grows
  #status;
  #label;
  #detail;
  #actions;
  #retry = null;
  #beats = 0;
  #timer = 0;

  constructor(log, question) {
    const asked = make("article", "question", log);
    say(make("h2", "hidden", asked), "you");
    make("p", "body", asked).textContent = question;

    this.#answer = make("article", "answer", log);
    say(make("h2", "who", this.#answer), "assistant");
    this.#body = make("div", "body", this.#answer);
    this.#typed = this.#body.appendChild(document.createTextNode(""));
    this.#status = make("div", "status", this.#answer);
    make("span", "mark", this.#status).setAttribute("aria-hidden", "true");
    this.#label = make("span", "label", this.#status);
    this.#actions = make("span", "actions", this.#status);
    this.#detail = make("p", "detail", this.#answer);
  }

  // Begins, or begins again.
  ask() {
    clearInterval(this.#timer);
    this.#beats = 0;
    this.#typed.data = "";
    this.#set("asking", "asking");
  }

  type(more) {
    this.#typed.appendData(more);
  }

  // Text has come; a heartbeat; a model's talk with itself.
  streaming() {
    if (this.#answer.dataset.state !== "streaming") this.#set("streaming", "streaming");
  }

  beat() {
    this.#beats += 1;
    this.#set("thinking", "beats", this.#beats);
  }

  thinking() {
    this.#set("thinking", "thinking");
  }

  // How it ended, after chat.js. Returns what to announce.
  end(outcome, retry, retryable) {
    switch (outcome.kind) {
      case "whole":
        this.#set("whole", "whole");
        this.#offerCopy();
        break;
      case "refused":
        this.#set("refused", "refused", outcome.code);
        this.#detail.textContent = outcome.message;
        if (outcome.retryS !== null) this.#countDown(outcome.retryS, retry, retryable);
        break;
      default:
        if (outcome.kind === "stopped") this.#set("stopped", "stopped");
        else this.#set("incomplete", "incomplete", outcome.code);
        // An engine's own words, where its code says nothing to us.
        if (!known(outcome.code)) this.#detail.textContent = outcome.message ?? "";
        // Within the text, so that it is copied and printed with it.
        say(make("strong", "missing", this.#body), "missing");
        this.#retry = this.#button("retry", retry);
    }
    return this.#label.textContent;
  }

  // Another question has been asked since: this one is not asked again.
  settle() {
    clearInterval(this.#timer);
    this.#retry?.remove();
  }

  #set(state, name, ...values) {
    this.#answer.dataset.state = state;
    this.#answer.setAttribute("aria-busy", String(["asking", "thinking", "streaming"].includes(state)));
    say(this.#label, name, ...values);
    this.#actions.replaceChildren();
    this.#detail.textContent = "";
    this.#body.querySelector(".missing")?.remove();
  }

  #button(name, pressed) {
    const button = make("button", "quiet", this.#actions);
    button.type = "button";
    say(button, name);
    button.addEventListener("click", pressed);
    return button;
  }

  #offerCopy() {
    if (!navigator.clipboard || this.#typed.length === 0) return; // only where it is secure
    const button = this.#button("copy", async () => {
      await navigator.clipboard.writeText(this.#typed.data);
      say(button, "copied");
    });
  }

  // Nobody comes back before the time that was asked for, and nobody by himself.
  #countDown(seconds, retry, retryable) {
    const button = this.#button("retry", retry);
    this.#retry = button;
    const until = performance.now() + seconds * 1000;
    const tick = () => {
      const left = Math.ceil((until - performance.now()) / 1000);
      button.disabled = left > 0;
      if (left > 0) {
        say(button, "againIn", left);
        return;
      }
      clearInterval(this.#timer);
      say(button, "retry");
      retryable(text("againNow"));
    };
    tick();
    this.#timer = setInterval(tick, 250);
  }
}
