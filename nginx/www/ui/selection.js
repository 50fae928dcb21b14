// Which leases the table shows, and in which order.

// Columns that can be sorted by. What has no value comes last, whichever way.
const KEYS = {
  id: (lease) => lease.id,
  place: (lease) => `${lease.pool}/${lease.backend}`,
  scene: (lease) => lease.scene,
  tokens: (lease) => lease.tokens,
  age: (lease) => -lease.since,
  bytes: (lease) => lease.progress?.bytes ?? null,
  idle: (lease) => (lease.quietSince === null ? null : -lease.quietSince),
  state: (lease) => lease.state,
};

export const COLUMNS = Object.keys(KEYS);

let marks = 0; // a lease that has the newest one is chosen, or not, already

export class Selection {
  #order = [];
  #asked = null;

  // The leases (a Map by id) that match { words, pool, state }, in the order of { by, down }.
  // The order of the time before is begun with: sorting what is nearly sorted costs little.
  of(leases, asked) {
    const again = this.#asked !== null && sameQuestion(asked, this.#asked);
    this.#asked = { ...asked };
    const fits = matcher(asked);
    const mark = ++marks;
    const chosen = [];
    const take = (lease) => {
      if (lease.mark === mark) return;
      lease.mark = mark;
      if (fits(lease)) chosen.push(lease);
    };
    if (again) for (const lease of this.#order) if (leases.get(lease.id) === lease) take(lease);
    for (const lease of leases.values()) take(lease);
    chosen.sort(comparer(KEYS[asked.by], asked.down));
    this.#order = chosen;
    return chosen;
  }
}

function sameQuestion(one, other) {
  return ["words", "pool", "state", "by", "down"].every((name) => one[name] === other[name]);
}

// All words must be somewhere in what a lease is called.
function matcher({ words, pool, state }) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return (lease) => {
    if (pool && lease.pool !== pool) return false;
    if (state && lease.state !== state) return false;
    if (wanted.length === 0) return true;
    const text = called(lease);
    return wanted.every((word) => text.includes(word));
  };
}

function called({ id, pool, backend, scene, tenant, session }) {
  return `${id} ${pool}/${backend} ${scene} ${tenant} ${session}`.toLowerCase();
}

function comparer(key, down) {
  const way = down ? -1 : 1;
  return (one, other) => {
    const a = key(one);
    const b = key(other);
    if (a !== b) {
      if (a === null) return 1;
      if (b === null) return -1;
      return a < b ? -way : way;
    }
    return one.id < other.id ? -1 : 1;
  };
}
