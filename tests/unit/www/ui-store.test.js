// What the dashboard knows, after pages and events in any order.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ServiceClock } from "../../../nginx/www/ui/clock.js";
import { Store, isBeingCut, limitOf } from "../../../nginx/www/ui/store.js";

const AHEAD_S = 1_000_000; // by so much the service's clock is ahead of this one

function started() {
  const time = { ms: 50_000 };
  const clock = new ServiceClock(() => time.ms);
  const changed = [];
  const store = new Store(clock, (part) => changed.push(part));
  let id = 100;
  const tell = (kind, data) =>
    store.apply({ id: ++id, kind, data: { at: AHEAD_S + time.ms / 1000, ...data } });
  return { store, clock, time, changed, tell };
}

const granted = (id) => ({ id, pool: "p", backend: "b", scene: "QA", tenant: "", tokens: 100, session: "n/1/2" });
const paged = (id, more = {}) => ({
  ...granted(id), state: "active", verdict: null, witness: null, age_s: 40, granted_at: AHEAD_S + 10, progress: null, ...more,
});
const ids = (store) => [...store.leases.keys()].sort();

test("leases come with pages, are added and taken away by events", () => {
  const { store, time, tell } = started();
  const reading = store.read();
  reading.put([paged("a"), paged("b")], time.ms);
  reading.finish();
  tell("granted", granted("c"));
  tell("draining", { id: "a", pool: "p", backend: "b", verdict: "client_abort", witness: "lua" });
  assert.deepEqual([store.leases.get("a").state, store.leases.get("a").verdict], ["draining", "client_abort"]);
  tell("ended", { id: "a", pool: "p", backend: "b", verdict: "client_abort", witness: "lua", age_s: 41, tokens: 100 });
  assert.deepEqual(ids(store), ["b", "c"]);
});

test("a page that was written before an end does not bring the lease back", () => {
  const { store, time, tell } = started();
  tell("granted", granted("a"));
  tell("ended", { id: "a", verdict: "completed", age_s: 1, tokens: 100 });
  const reading = store.read();
  reading.put([paged("a"), paged("b")], time.ms);
  reading.finish();
  assert.deepEqual(ids(store), ["b"]);
  time.ms += 60_000; // by then no such page is under way, and the id is forgotten
  tell("ended", { id: "z", verdict: "completed", age_s: 1, tokens: 1 });
  store.refresh([paged("a")], time.ms);
  assert.deepEqual(ids(store), ["a", "b"]);
});

test("what is on no page is gone, unless it was granted meanwhile", () => {
  const { store, time, tell } = started();
  store.refresh([paged("old")], time.ms);
  const reading = store.read();
  reading.put([paged("a")], time.ms);
  tell("granted", granted("new"));
  reading.finish();
  assert.deepEqual(ids(store), ["a", "new"]);
});

test("an event that was applied before changes nothing", () => {
  const { store } = started();
  const event = { id: 7, kind: "granted", data: { at: 1, ...granted("a") } };
  assert.equal(store.apply(event), true);
  assert.equal(store.apply({ ...event, data: { at: 1, ...granted("b") } }), false);
  assert.deepEqual(ids(store), ["a"]);
});

test("ages are by our clock, however wrong the service's is", () => {
  const { store, clock, time, tell } = started();
  store.refresh([paged("a")], time.ms);
  assert.equal(store.leases.get("a").since, time.ms - 40_000);
  time.ms += 5000;
  tell("granted", granted("b"));
  assert.equal(store.leases.get("b").since, time.ms);
  time.ms += 300; // an event that took longer than another
  assert.equal(clock.here(AHEAD_S + (time.ms - 300) / 1000), time.ms - 300);
  assert.ok(clock.here(AHEAD_S + time.ms / 1000 + 60) <= time.ms, "nothing is of tomorrow");
});

test("silence is as old as its report, but what flowed then flows", () => {
  const { store, time } = started();
  const progress = { bytes: 9, events: 3, idle_s: 2, phase: "stream", reported_s: 1.5 };
  store.refresh([paged("a", { progress }), paged("b", { progress: { ...progress, idle_s: 0.5 } })], time.ms);
  assert.equal(store.leases.get("a").quietSince, time.ms - 3500);
  assert.equal(store.leases.get("b").quietSince, time.ms - 500);
});

test("a lease stays one object, and one that is taken up again is active", () => {
  const { store, time, tell } = started();
  store.refresh([paged("a")], time.ms);
  const lease = store.leases.get("a");
  tell("draining", { id: "a", pool: "p", backend: "b", verdict: "lost", witness: "session" });
  tell("moved", { id: "a", pool: "p", backend: "c" });
  tell("granted", granted("a"));
  store.refresh([paged("a", { backend: "c" })], time.ms);
  assert.equal(store.leases.get("a"), lease);
  assert.deepEqual([lease.backend, lease.state], ["c", "active"]);
});

test("recent events are bounded, and quiet ends and grants are none that matter", () => {
  const { store, tell } = started();
  for (let n = 0; n < 500; n += 1) {
    tell("granted", granted(`l${n}`));
    tell("ended", { id: `l${n}`, verdict: n % 2 ? "completed" : "timeout", age_s: 1, tokens: 1 });
  }
  assert.deepEqual([store.news.all.length, store.news.recent.length, store.leases.size], [200, 200, 0]);
  assert.ok(store.news.recent.every(({ data }) => data.verdict === "timeout"));
  assert.ok(store.news.recent[0].id > store.news.recent[1].id);
});

test("refusals that are alike are told as one, and hide nothing else", () => {
  const { store, tell } = started();
  tell("node", { node: "n", state: "silent" });
  for (let n = 0; n < 300; n += 1) {
    tell("refused", { pool: "p", reason: "streams_exhausted", ...(n === 0 && { count: 40 }) });
    tell("refused", { pool: "q", reason: "no_backend" });
  }
  assert.deepEqual(
    store.news.recent.map(({ kind, data }) => [kind, data.pool, data.count]),
    [["refused", "q", 300], ["refused", "p", 339], ["node", undefined, undefined]],
  );
  assert.equal(store.news.all.length, 200);
});

test("alarms stand until they are cleared, also those of before the page", () => {
  const { store, tell } = started();
  const alarm = (id, name, state) => ({ id, kind: "alarm", data: { at: 1, pool: "p", alarm: name, state } });
  tell("alarm", { pool: "p", alarm: "saturated", state: "cleared" });
  store.recall([alarm(1, "saturated", "raised"), alarm(2, "other", "raised"), alarm(3, "third", "raised"), alarm(4, "third", "cleared")]);
  assert.deepEqual([...store.news.alarms.keys()], ["p/other"]);
  assert.deepEqual(store.news.recent.map(({ id }) => id), [101, 4, 3, 2, 1]);
  store.forget();
  assert.equal(store.news.alarms.size, 0);
});

test("what was heard already is not recalled, also where so much came that it is not kept", () => {
  const { store, tell } = started();
  const refused = (id) => ({ id, kind: "refused", data: { at: AHEAD_S + 50, pool: "p", reason: "no_backend" } });
  for (let n = 0; n < 300; n += 1) tell("refused", { pool: "p", reason: "no_backend" });
  store.recall(Array.from({ length: 320 }, (_, n) => refused(81 + n)));
  assert.deepEqual(store.news.recent.map(({ data }) => data.count), [320]);
});

test("who waits for an end is told once", () => {
  const { store, tell } = started();
  const told = [];
  tell("granted", granted("a"));
  store.whenEnded("a", ({ verdict }) => told.push(verdict));
  tell("ended", { id: "a", verdict: "killed", age_s: 3, tokens: 1 });
  tell("granted", granted("a"));
  tell("ended", { id: "a", verdict: "completed", age_s: 3, tokens: 1 });
  assert.deepEqual(told, ["killed"]);
});

test("who waits for an end is told where pages alone tell of it, and of the event that comes after", () => {
  const { store, time, tell } = started();
  const told = [];
  store.refresh([paged("a"), paged("b")], time.ms);
  store.whenEnded("a", (data) => told.push(data?.verdict ?? null));
  for (let n = 0; n < 2; n += 1) {
    const reading = store.read();
    reading.put([paged("b")], time.ms);
    reading.finish();
  }
  assert.deepEqual(told, [null]);
  tell("ended", { id: "a", verdict: "killed", age_s: 3, tokens: 1 });
  assert.deepEqual([told, ids(store)], [[null, "killed"], ["b"]]);
});

test("limits are those of the backends that take new streams", () => {
  const of = (state, max_streams) => ({ state, max_streams });
  assert.equal(limitOf([of("active", 25), of("draining", 8), of("disabled", 4), of("active", 1)], "max_streams"), 26);
  assert.equal(limitOf([], "max_streams"), 0);
});

test("minutes replace those that are known, and an hour is kept", () => {
  const { store } = started();
  const minute = (n, count) => ({ at: n * 60, granted: count, refused: {}, ended: {}, pools: {} });
  store.addHistory({ points: Array.from({ length: 60 }, (_, n) => minute(n, 1)) });
  store.addHistory({ points: [minute(59, 5), minute(60, 2)] });
  assert.equal(store.points.length, 60);
  assert.deepEqual(store.points.slice(-2).map(({ granted }) => granted), [5, 2]);
  assert.equal(store.points[0].at, 60);
});

test("a role may do what those before it may", () => {
  const { store } = started();
  const may = (role) => {
    store.set("who", { role });
    return ["cut", "state", "limits"].map((action) => store.may(action));
  };
  assert.deepEqual(may("read"), [false, false, false]);
  assert.deepEqual(may("operate"), [true, true, false]);
  assert.deepEqual(may("admin"), [true, true, true]);
  assert.deepEqual(may("something new"), [false, false, false]);
});

test("a stream that was told to be cut is taken to be cut for some seconds, whatever pages say meanwhile", () => {
  const { store, time } = started();
  store.refresh([paged("a")], time.ms);
  store.cutting("a");
  time.ms += 5000;
  store.refresh([paged("a")], time.ms);
  assert.equal(isBeingCut(store.leases.get("a"), time.ms), true);
  assert.equal(isBeingCut(store.leases.get("a"), time.ms + 6000), false, "then it may be asked for again");
  store.cutting("gone already");
});
