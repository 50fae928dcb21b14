// The events that were heard of, newest first, and the alarms that stand.

const KEPT = 200;
const NEAR = 8; // as far back refusals are gathered
const GATHERED_S = 60;
const QUIET_ENDS = new Set(["completed", "client_abort"]);

export class News {
  all = [];
  recent = []; // those that matter
  alarms = new Map(); // "pool/alarm" -> what raised it
  #first = null; // the id of the first event that was noted, whether it is kept or not

  note(event) {
    this.#first ??= event.id;
    keep(this.all, event);
    if (matters(event)) this.#tell(event);
    if (event.kind === "alarm") this.#alarm(event.data);
  }

  // Events of before the first that was noted, oldest first. Those alarms stand that were not
  // cleared since.
  recall(events) {
    const first = this.#first ?? Infinity;
    const before = events.filter(({ id }) => id < first);
    const since = this.recent.reverse();
    this.recent = [];
    for (const event of [...before, ...since]) {
      this.#tell(event);
      if (event.kind === "alarm") this.#alarm(event.data);
    }
    this.all = [...this.all, ...before.reverse()].slice(0, KEPT);
  }

  // Events were missed: what only they tell is not known any more.
  forget() {
    this.alarms.clear();
  }

  #tell(event) {
    keep(this.recent, event.kind === "refused" ? this.#withAlike(event) : event);
  }

  // One refusal for many alike, so that they do not hide what else happened.
  #withAlike(event) {
    const { at, pool, reason, count = 1 } = event.data;
    const alike = this.recent.slice(0, NEAR).findIndex(
      ({ kind, data }) =>
        kind === "refused" && data.pool === pool && data.reason === reason && at - data.at < GATHERED_S,
    );
    if (alike < 0) return event;
    const [before] = this.recent.splice(alike, 1);
    return { ...event, data: { ...event.data, count: count + (before.data.count ?? 1) } };
  }

  #alarm(data) {
    const name = `${data.node ?? data.pool ?? ""}/${data.alarm}`;
    if (data.state === "raised") this.alarms.set(name, data);
    else this.alarms.delete(name);
  }
}

function matters({ kind, data }) {
  if (kind === "granted" || kind === "draining") return false;
  return kind !== "ended" || !QUIET_ENDS.has(data.verdict);
}

function keep(list, event) {
  list.unshift(event);
  if (list.length > KEPT) list.pop();
}
