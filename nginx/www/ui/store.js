// All that the service has said, put together: pages, polls and events. No network, no DOM.
//
// Events are the quick way and pages the sure one. A lease that has ended stays known for a while,
// so that a page which was written before its end does not bring it back.

import { News } from "./news.js";

const ENDED_KEPT_MS = 30_000;
const CUTTING_MS = 10_000; // after that it may be asked for again
const FLOWING_S = 2;
const MINUTES = 60;
const RANK = { read: 0, operate: 1, admin: 2 };
const NEEDED = { cut: "operate", state: "operate", limits: "admin" };

export class Store {
  who = null; // { name, role, open }
  pools = [];
  nodes = [];
  config = null;
  fault = null; // { code, detail }: why the service grants nothing
  leases = new Map(); // id -> lease; `since` and `quietSince` by our clock, in ms
  points = []; // minutes, oldest first
  news = new News();

  #clock;
  #changed;
  #lastId = 0;
  #ended = new Map(); // id -> when
  #endings = new Map(); // id -> who wants to be told
  #reading = 0;

  // changed(part): one of those that can be set, "leases", "history" or "news".
  constructor(clock, changed) {
    this.#clock = clock;
    this.#changed = changed;
  }

  // Whether who looks may "cut", change the "state" of a backend, or its "limits".
  may(action) {
    return RANK[this.who?.role ?? "read"] >= RANK[NEEDED[action]];
  }

  // Sets "who", "pools", "nodes", "config" or "fault".
  set(part, value) {
    this[part] = value;
    this.#changed(part);
  }

  backend(pool, name) {
    const found = this.pools.find((each) => each.name === pool);
    return found?.backends.find((each) => each.name === name) ?? null;
  }

  // New minutes replace those that are known.
  addHistory({ points }) {
    const first = points[0]?.at ?? Infinity;
    const before = this.points.filter((point) => point.at < first);
    this.points = [...before, ...points].slice(-MINUTES);
    this.#changed("history");
  }

  // -- leases, by pages --------------------------------------------------------------------------

  // A reading of all pages: `put` each with the time it came, then `finish`. What was there
  // before it began and is on no page is gone.
  read() {
    const reading = ++this.#reading;
    return {
      put: (leases, at) => this.#put(leases, at, reading),
      finish: () => {
        for (const lease of this.leases.values()) {
          if (lease.reading >= reading) continue;
          this.leases.delete(lease.id);
          this.#endings.get(lease.id)?.(null);
        }
        this.#changed("leases");
      },
    };
  }

  // News of some leases, that says nothing of the others.
  refresh(leases, at) {
    this.#put(leases, at, this.#reading);
  }

  #put(leases, now, reading) {
    for (const told of leases) {
      if (this.#ended.has(told.id)) continue;
      this.#clock.heard(told.granted_at + told.age_s);
      const since = now - told.age_s * 1000;
      const quiet = told.progress ? now - silent(told.progress) * 1000 : null;
      this.#keep({ ...told, since, quietSince: quiet, reading });
    }
    this.#changed("leases");
  }

  // One object a lease for as long as it lives: the table's order is made of them.
  #keep(lease) {
    const known = this.leases.get(lease.id);
    if (known) Object.assign(known, lease);
    else this.leases.set(lease.id, lease);
  }

  // -- events ------------------------------------------------------------------------------------

  // Applies one; those that were applied before change nothing. True where it did.
  apply({ id, kind, data }) {
    if (id <= this.#lastId) return false;
    this.#lastId = id;
    this.#clock.heard(data.at);
    this.news.note({ id, kind, data });
    this.#changed("news");
    switch (kind) {
      case "granted":
        this.#ended.delete(data.id);
        if (this.leases.has(data.id)) break; // a page was quicker, and knows more
        this.#keep({
          ...data, state: "active", verdict: null, progress: null,
          since: this.#clock.here(data.at), quietSince: null, reading: this.#reading,
        });
        this.#changed("leases");
        break;
      case "draining":
      case "moved": {
        const lease = this.leases.get(data.id);
        if (!lease) break;
        // One that was given up and is taken up again is told as moved too.
        if (kind === "moved") Object.assign(lease, { backend: data.backend, state: "active", verdict: null });
        else Object.assign(lease, { state: "draining", verdict: data.verdict, witness: data.witness });
        this.#changed("leases");
        break;
      }
      case "ended":
        this.#end(data);
        break;
      case "limits": {
        const backend = this.backend(data.pool, data.backend);
        if (backend) Object.assign(backend, data.after);
        this.#changed("pools");
        break;
      }
      case "node": {
        const node = this.nodes.find((each) => each.name === data.node);
        if (node) node.silent = data.state === "silent";
        this.#changed("nodes");
      }
    }
    return true;
  }

  // Events of before the first that was applied.
  recall(events) {
    this.news.recall(events);
    this.#changed("news");
  }

  // Events were missed. Those that come next are new, whatever their ids: a service may have been
  // started again with its clock put back.
  forget() {
    this.#lastId = 0;
    this.news.forget();
    this.#changed("news");
  }

  // The service has told its gateway to cut it.
  cutting(id) {
    const lease = this.leases.get(id);
    if (!lease) return;
    lease.cutAt = this.#clock.now();
    this.#changed("leases");
  }

  // Calls back once, with what the service says of the lease's end, and before that with null if
  // pages tell of it first: the event may have been missed. Returns what undoes it.
  whenEnded(id, callback) {
    this.#endings.set(id, callback);
    return () => this.#endings.delete(id);
  }

  #end(data) {
    const now = this.#clock.now();
    this.leases.delete(data.id);
    this.#ended.set(data.id, now);
    for (const [id, at] of this.#ended) {
      if (now - at < ENDED_KEPT_MS) break; // they are in the order of their ends
      this.#ended.delete(id);
    }
    this.#endings.get(data.id)?.(data);
    this.#endings.delete(data.id);
    this.#changed("leases");
  }
}

// A limit of several backends together: of those that take new streams, as the service counts it.
export function limitOf(backends, name) {
  return backends.reduce((sum, backend) => sum + (backend.state === "active" ? backend[name] : 0), 0);
}

// Whether it was told to be cut, and may still be: its gateway hears of it within a second or two.
export function isBeingCut({ cutAt, state }, now) {
  return state === "active" && cutAt !== undefined && now - cutAt < CUTTING_MS;
}

// For how many seconds, as far as anybody knows. A stream that flowed when its gateway last said,
// some seconds ago, is taken to flow.
function silent({ idle_s, reported_s }) {
  return idle_s < FLOWING_S ? idle_s : idle_s + reported_s;
}
