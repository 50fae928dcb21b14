// What is read now and then: not while nobody looks, nor while the answer before is still to come.

import { ApiError } from "./api.js";

export class Polls {
  #timers = new Set();
  #refused;

  // refused(error): the token is no longer taken.
  constructor(refused) {
    this.#refused = refused;
  }

  // Has act() done every so often. That the service is away it need not say: others see it too.
  every(ms, act) {
    let busy = false;
    const timer = setInterval(async () => {
      if (busy || globalThis.document?.hidden) return;
      busy = true;
      try {
        await act();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (error.status === 401 && this.#timers.has(timer)) this.#refused(error);
      } finally {
        busy = false;
      }
    }, ms);
    this.#timers.add(timer);
  }

  stop() {
    for (const timer of this.#timers) clearInterval(timer);
    this.#timers.clear();
  }
}
