// Keeps the store true: who looks, the stream of events, and what is read now and then.
//
// The stream is opened first and its events are held back; then all is read; then they are
// applied. So nothing that happens meanwhile is missed.

import { ApiError } from "./api.js";
import { Feed } from "./feed.js";
import { Polls } from "./polls.js";
import { recall } from "./recall.js";

const PAGE = 1000;
const POOLS_MS = 1000;
const NODES_MS = 2000;
const READY_MS = 3000;
const HISTORY_MS = 5000;
const LEASES_MS = 2000;
const FEW = 300; // so many leases are read whole each time, more a part now and then
const PART = 500;
const PART_MS = 5000;

export class Live {
  #api;
  #store;
  #clock;
  #tell;
  #seen;
  #feed;
  #held = null; // events that wait for the pages
  #polls = new Polls((error) => this.#refused(error));
  #recalled = false;
  #historyAt = 0;
  #partAt = 0;
  #cursor = null; // of the reading under way
  #reading = null;
  #round = 0; // a start, a loss: what was asked for before it no longer counts

  // tell(state, detail): "connecting", "live", "reconnecting", "token" or "forbidden".
  // seen(): the ids of the leases that are looked at.
  constructor(api, store, clock, { tell, seen }) {
    this.#api = api;
    this.#store = store;
    this.#clock = clock;
    this.#tell = tell;
    this.#seen = seen;
    this.#feed = new Feed(
      (headers, signal) => api.stream("v1/events?thin=true", headers, signal),
      {
        opened: () => this.#load(),
        event: (event) => this.#take(event),
        lost: (error, retryMs) => this.#lost(error, retryMs),
      },
    );
  }

  // Begins, or begins anew: with another token, say.
  start() {
    this.stop();
    this.#tell("connecting");
    this.#feed.start();
  }

  stop() {
    this.#rest();
    this.#feed.stop();
  }

  // Reads a part at once: what was just changed shall be seen.
  async look(part) {
    try {
      if (part === "pools") this.#store.set("pools", (await this.#api.read("v1/pools")).pools);
      else this.#store.set("who", await this.#api.read("v1/whoami"));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }

  async #load() {
    this.#rest();
    const round = this.#round;
    this.#held = [];
    this.#clock.restart();
    try {
      const [who, { pools }, { nodes }, history] = await Promise.all(
        ["v1/whoami", "v1/pools", "v1/nodes", "v1/history?minutes=60"].map((path) => this.#api.read(path)),
      );
      const pages = [];
      let cursor = null;
      do {
        const page = await this.#page(PAGE, cursor);
        pages.push(page);
        cursor = page.next;
      } while (cursor !== null && round === this.#round);
      if (round !== this.#round) return;
      this.#store.set("who", who);
      this.#store.set("pools", pools);
      this.#store.set("nodes", nodes);
      this.#store.addHistory(history);
      this.#historyAt = this.#clock.now();
      const reading = this.#store.read();
      for (const page of pages) reading.put(page.leases, page.at);
      reading.finish();
    } catch (error) {
      // Without the pages the stream is of no use: both are tried again.
      if (round === this.#round) this.#feed.fail(error);
      return;
    }
    const held = this.#held;
    this.#held = null;
    for (const event of held) this.#store.apply(event);
    this.#tell("live");
    this.#readNowAndThen();
    if (this.#recalled) return;
    this.#recalled = true; // later streams are resumed, and bring what was missed themselves
    this.#store.recall(await recall(this.#api));
  }

  async #page(limit, cursor) {
    return this.#leases(`limit=${limit}${cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`}`);
  }

  async #leases(query) {
    const page = await this.#api.read(`v1/leases?${query}`);
    return { ...page, at: this.#clock.now() };
  }

  #take(event) {
    // All is read again whenever the stream is opened, so that what was missed before it, or since
    // the service dropped us, is made good already.
    if (event.kind === "dropped") return;
    if (event.kind === "gap") this.#store.forget();
    else if (this.#held) this.#held.push(event);
    else this.#store.apply(event);
  }

  #lost(error, retryMs) {
    this.#rest();
    if (error?.status === 401 || error?.code === "throttled") {
      this.#tell("token", error);
      return false;
    }
    this.#tell(error?.status === 403 ? "forbidden" : "reconnecting", { error, retryMs });
    return true;
  }

  #refused(error) {
    this.stop();
    this.#tell("token", error);
  }

  #rest() {
    this.#round += 1;
    this.#polls.stop();
    for (const event of this.#held ?? []) this.#store.apply(event); // they will not come again
    this.#held = null;
    this.#reading = null;
  }

  #readNowAndThen() {
    // The file's settings tell where a node's marks are; a service that says less is no fault.
    this.#api.read("v1/config").then((config) => this.#store.set("config", config), () => {});
    this.#polls.every(POOLS_MS, async () => this.#store.set("pools", (await this.#api.read("v1/pools")).pools));
    this.#polls.every(NODES_MS, async () => this.#store.set("nodes", (await this.#api.read("v1/nodes")).nodes));
    this.#polls.every(READY_MS, () => this.#readReady());
    this.#polls.every(HISTORY_MS, () => this.#readHistory());
    this.#polls.every(LEASES_MS, () => this.#readLeases());
  }

  // The minutes since it was read last, of a tab that was not looked at for a while too.
  async #readHistory() {
    const minutes = Math.min(60, 2 + Math.floor((this.#clock.now() - this.#historyAt) / 60_000));
    const at = this.#clock.now();
    this.#store.addHistory(await this.#api.read(`v1/history?minutes=${minutes}`));
    this.#historyAt = at;
  }

  // Whether it would decide: 503 says why not.
  async #readReady() {
    let fault = null;
    try {
      await this.#api.read("readyz");
    } catch (error) {
      if (error?.status !== 503) throw error;
      fault = { code: error.code, detail: error.detail };
    }
    this.#store.set("fault", fault);
  }

  // How far each stream has come is on the pages alone, and they mend what events did not say. Of
  // many leases those that are looked at are read each time, and ten thousand within two minutes.
  async #readLeases() {
    const round = this.#round;
    const few = this.#store.leases.size <= FEW;
    const ids = few ? [] : this.#seen();
    if (ids.length > 0) {
      const { leases, at } = await this.#leases(`ids=${ids.map(encodeURIComponent).join(",")}`);
      if (round !== this.#round) return;
      this.#store.refresh(leases, at);
    }
    const due = this.#clock.now() - this.#partAt >= PART_MS;
    if (few) await this.#readPart(PAGE);
    else if (due) await this.#readPart(PART);
  }

  async #readPart(limit) {
    const round = this.#round;
    this.#partAt = this.#clock.now();
    if (this.#reading === null) {
      this.#cursor = null;
      this.#reading = this.#store.read();
    }
    const page = await this.#page(limit, this.#cursor);
    if (round !== this.#round) return;
    this.#reading.put(page.leases, page.at);
    this.#cursor = page.next;
    if (page.next !== null) return;
    this.#reading.finish();
    this.#reading = null;
  }
}
