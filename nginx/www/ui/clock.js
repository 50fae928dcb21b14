// The service's time in this browser's: events say when they were, by a clock that may be minutes
// from ours. All here is in milliseconds of performance.now(), which nobody sets.

export class ServiceClock {
  #now;
  #ahead = null; // the service's time minus ours; what came fastest knows it best

  constructor(now = () => performance.now()) {
    this.#now = now;
  }

  now() {
    return this.#now();
  }

  // Something came that the service had dated so, in seconds since 1970.
  heard(atS) {
    const ahead = atS * 1000 - this.#now();
    if (this.#ahead === null || ahead > this.#ahead) this.#ahead = ahead;
  }

  // A new connection: what was known may be from before a night's sleep.
  restart() {
    this.#ahead = null;
  }

  // When that was for us.
  here(atS) {
    return this.#ahead === null ? this.#now() : Math.min(atS * 1000 - this.#ahead, this.#now());
  }
}
