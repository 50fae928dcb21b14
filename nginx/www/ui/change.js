// A change of a backend against what it was when it was looked at: if somebody else changed it
// meanwhile, nothing is done, and what they did is told.

import { text } from "./texts.js";
import { differences } from "./recent-view.js";

export class Change {
  #api;
  #path;
  #seen = null; // { data, etag }

  constructor(api, pool, backend) {
    this.#api = api;
    this.#path = `v1/pools/${encodeURIComponent(pool)}/backends/${encodeURIComponent(backend)}`;
  }

  // The backend as it is now; what follows is decided on that.
  async look() {
    this.#seen = await this.#api.ask("GET", this.#path);
    return this.#seen.data;
  }

  // The backend as the service says it is after it. An error with `told` and `now` where it has
  // been changed since the look, which counts as another look.
  async make(body) {
    const { data, etag } = this.#seen;
    try {
      return (await this.#api.ask("PATCH", this.#path, { body, etag })).data;
    } catch (error) {
      if (error.status !== 412) throw error;
      const now = await this.look();
      const changed = differences(data, now);
      throw Object.assign(error, { now, told: changed ? text("changed", changed) : text("changedSame") });
    }
  }
}
