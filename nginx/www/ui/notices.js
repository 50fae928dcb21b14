// What was done, and what the service said of it: a few lines at the edge.

import { button, make, setText } from "./dom.js";
import { text } from "./texts.js";

const KEPT_MS = 20_000;
const MOST = 4;

export class Notices {
  #root;

  constructor(root) {
    this.#root = root;
  }

  // Returns what changes the notice: say(words) and dismiss(). One that `waits` for more stays.
  notify(words, { waits = false } = {}) {
    const notice = make("div", "notice");
    const line = make("p", "", notice);
    const dismiss = () => notice.remove();
    const close = button("quiet icon", notice, "×", dismiss);
    close.setAttribute("aria-label", text("dismiss"));
    let timer = 0;
    const say = (more, { waits: still = false } = {}) => {
      clearTimeout(timer);
      setText(line, more);
      notice.dataset.waits = String(still);
      if (!notice.isConnected && more !== "") this.#root.append(notice);
      while (this.#root.childElementCount > MOST) this.#root.firstElementChild.remove();
      if (!still) timer = setTimeout(dismiss, KEPT_MS);
    };
    say(words, { waits });
    return { say, dismiss };
  }
}
