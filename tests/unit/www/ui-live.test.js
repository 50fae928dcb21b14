// How the dashboard begins, goes on and begins again: the stream first, then the pages, then what
// the stream said meanwhile.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { ApiError } from "../../../nginx/www/ui/api.js";
import { ServiceClock } from "../../../nginx/www/ui/clock.js";
import { Live } from "../../../nginx/www/ui/live.js";
import { Store } from "../../../nginx/www/ui/store.js";

const settled = () => new Promise((resolve) => setTimeout(resolve, 10));
const lease = (id) => ({
  id, pool: "p", backend: "b", scene: "QA", tenant: "", session: "n/1/2", tokens: 1, state: "active",
  verdict: null, witness: null, granted_at: 100, age_s: 1, progress: null,
});

// A service of which the test says what it holds, and when its pages come.
class Service {
  pages = { "v1/whoami": { name: "x", role: "read", open: false }, "v1/pools": { pools: [] }, "v1/nodes": { nodes: [] } };
  leases = [];
  streams = [];
  asked = [];
  gate = Promise.resolve();
  refusal = null;

  async read(path) {
    this.asked.push(path);
    const leases = this.leases; // as they were when it was asked
    if (path.startsWith("v1/leases")) await this.gate;
    if (this.refusal) throw this.refusal;
    if (!path.startsWith("v1/leases")) return this.pages[path] ?? { points: [] };
    const [limit, from] = [...path.matchAll(/(?:limit|cursor)=(\d+)/g)].map(([, number]) => Number(number));
    const end = (from ?? 0) + limit;
    return { leases: leases.slice(from ?? 0, end), next: end < leases.length ? String(end) : null };
  }

  async stream(path, headers, signal) {
    let controller;
    const body = new ReadableStream({ start: (made) => (controller = made) });
    signal.addEventListener("abort", () => controller.error(new DOMException("", "AbortError")));
    const tell = (id, kind, data) =>
      controller.enqueue(new TextEncoder().encode(`id: ${id}\nevent: ${kind}\ndata: ${JSON.stringify({ at: 100, ...data })}\n\n`));
    if (path === "v1/events?thin=true") this.streams.push({ tell, close: () => controller.close(), headers });
    else controller.close(); // what happened before
    return body;
  }
}

let live = null;
afterEach(() => live.stop());

function started() {
  const service = new Service();
  const clock = new ServiceClock();
  const store = new Store(clock, () => {});
  const told = [];
  live = new Live(service, store, clock, { tell: (state) => told.push(state), seen: () => [] });
  const ids = () => [...store.leases.keys()].sort();
  return { service, store, told, ids };
}

test("what happens while the pages are read is not missed, and nothing comes back by them", async () => {
  const { service, told, ids } = started();
  let open;
  service.gate = new Promise((resolve) => (open = resolve));
  service.leases = [lease("old"), lease("ends")];
  live.start();
  await settled();
  service.streams[0].tell(11, "granted", lease("new"));
  service.streams[0].tell(12, "ended", { id: "ends", verdict: "completed", age_s: 1 });
  await settled();
  assert.deepEqual([told, ids()], [["connecting"], []]);
  open();
  await settled();
  assert.deepEqual([told, ids()], [["connecting", "live"], ["new", "old"]]);
  service.streams[0].tell(13, "granted", lease("later"));
  await settled();
  assert.deepEqual(ids(), ["later", "new", "old"]);
});

test("all pages are read", async () => {
  const { service, ids } = started();
  service.leases = Array.from({ length: 2345 }, (_, n) => lease(`l${n}`));
  live.start();
  await settled();
  await settled();
  assert.equal(ids().length, 2345);
});

test("when the stream breaks off all is read again, and what ended meanwhile is gone", async () => {
  const { service, told, ids } = started();
  service.leases = [lease("a"), lease("b")];
  live.start();
  await settled();
  service.streams[0].tell(20, "granted", lease("c"));
  await settled();
  service.streams[0].close();
  await settled();
  assert.deepEqual([told.at(-1), ids()], ["reconnecting", ["a", "b", "c"]]);
  service.leases = [lease("b")];
  live.start(); // as its timer will
  await settled();
  assert.deepEqual([told.at(-1), ids()], ["live", ["b"]]);
  assert.equal(service.streams[1].headers["Last-Event-ID"], "20");
});

test("what was told while pages were read that never came is not lost", async () => {
  const { service, store, told } = started();
  service.gate = new Promise(() => {});
  live.start();
  await settled();
  service.streams[0].tell(7, "alarm", { pool: "p", alarm: "saturated", state: "raised", detail: "" });
  await settled();
  service.streams[0].close();
  await settled();
  service.gate = Promise.resolve();
  live.start(); // as its timer will
  await settled();
  assert.equal(service.streams[1].headers["Last-Event-ID"], "7");
  assert.deepEqual([told.at(-1), ...store.news.alarms.keys()], ["live", "p/saturated"]);
});

test("events after a gap are new, though their ids are smaller", async () => {
  const { service, told, ids } = started();
  live.start();
  await settled();
  service.streams[0].tell(900, "granted", lease("before"));
  await settled();
  service.streams[0].close();
  await settled();
  live.start(); // as its timer will; the service was started again, and its clock was put back
  await settled();
  service.streams[1].tell(99, "gap", { missed: null, oldest: 100 });
  service.streams[1].tell(100, "granted", lease("new"));
  await settled();
  assert.deepEqual([told.at(-1), ids()], ["live", ["new"]]);
});

test("a page that cannot be read ends the stream, and both are tried again", async () => {
  const { service, told } = started();
  service.refusal = new ApiError(503, "journal", "disk full");
  live.start();
  await settled();
  assert.deepEqual(told, ["connecting", "reconnecting"]);
});

test("a token that is refused is asked for, and nothing is tried until there is one", async () => {
  const { service, told } = started();
  service.refusal = new ApiError(401, "unauthorized");
  live.start();
  await settled();
  assert.deepEqual(told, ["connecting", "token"]);
  service.refusal = null;
  live.start();
  await settled();
  assert.equal(told.at(-1), "live");
});
