// Which streams the table shows, in which order, and which of their rows are there.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Selection } from "../../../nginx/www/ui/selection.js";
import { revealing, rowAfter, rowsInView } from "../../../nginx/www/ui/virtual.js";

const ALL = { words: "", pool: "", state: "", by: "age", down: true };

function lease(id, more = {}) {
  return {
    id, pool: "qwen", backend: "gpu-0", scene: "QA", tenant: "", session: "n/1/2", tokens: 100,
    state: "active", since: 0, progress: null, quietSince: null, ...more,
  };
}

const mapOf = (...leases) => new Map(leases.map((each) => [each.id, each]));
const chosen = (leases, asked) => new Selection().of(leases, { ...ALL, ...asked }).map(({ id }) => id);

test("all words must fit, somewhere in what a stream is called", () => {
  const leases = mapOf(lease("aa1"), lease("aa2", { backend: "gpu-1" }), lease("bb3", { scene: "Record_Gen", tenant: "ward" }));
  assert.deepEqual(chosen(leases, { words: "AA" }), ["aa1", "aa2"]);
  assert.deepEqual(chosen(leases, { words: "  aa   qwen/gpu-1 " }), ["aa2"]);
  assert.deepEqual(chosen(leases, { words: "record ward" }), ["bb3"]);
  assert.deepEqual(chosen(leases, { words: "(.*" }), []);
});

test("pool and state are chosen beside the words", () => {
  const leases = mapOf(lease("a"), lease("b", { pool: "other" }), lease("c", { state: "draining" }));
  assert.deepEqual(chosen(leases, { pool: "other" }), ["b"]);
  assert.deepEqual(chosen(leases, { state: "draining", pool: "qwen" }), ["c"]);
});

test("each column sorts both ways, and what is not known comes last", () => {
  const known = (bytes, quietSince) => ({ progress: { bytes }, quietSince });
  const leases = mapOf(lease("a", { since: 30, ...known(5, 10) }), lease("b", { since: 10, ...known(9, 40) }), lease("c", { since: 20 }));
  assert.deepEqual(chosen(leases, { by: "age", down: true }), ["b", "c", "a"]);
  assert.deepEqual(chosen(leases, { by: "age", down: false }), ["a", "c", "b"]);
  assert.deepEqual(chosen(leases, { by: "bytes", down: true }), ["b", "a", "c"]);
  assert.deepEqual(chosen(leases, { by: "bytes", down: false }), ["a", "b", "c"]);
  assert.deepEqual(chosen(leases, { by: "idle", down: true }), ["a", "b", "c"]);
  for (const by of ["id", "place", "scene", "tokens", "state"]) {
    assert.deepEqual(chosen(leases, { by, down: false }), ["a", "b", "c"], by);
  }
});

test("an order that goes on is the same as one that is made anew", () => {
  const leases = mapOf();
  const selection = new Selection();
  let random = 7;
  const next = (below) => (random = (random * 16807) % 2147483647) % below;
  for (let round = 0; round < 300; round += 1) {
    const id = `l${next(40)}`;
    if (leases.has(id) && next(2)) leases.delete(id);
    else leases.set(id, lease(id, { since: next(50), backend: `gpu-${next(3)}` }));
    const asked = { ...ALL, words: round > 150 ? "gpu-1" : "", by: round % 40 < 20 ? "age" : "place" };
    assert.deepEqual(selection.of(leases, asked), new Selection().of(leases, asked));
  }
});

test("ten thousand are chosen within a frame, also when they are sorted by another column", () => {
  const leases = mapOf(...Array.from({ length: 10_000 }, (_, n) => lease(`l${(n * 7919) % 10_000}`, { since: n })));
  const selection = new Selection();
  selection.of(leases, ALL);
  const began = performance.now();
  for (let n = 0; n < 20; n += 1) {
    leases.delete(`l${n}`);
    leases.set(`new${n}`, lease(`new${n}`, { since: 20_000 + n }));
    selection.of(leases, ALL);
  }
  const each = (performance.now() - began) / 20;
  assert.ok(each < 50, `${each} ms`); // about 3 where nothing else runs
});

test("only the rows that are seen are there, and a few more", () => {
  const box = { height: 400, rowHeight: 40, count: 10_000 };
  assert.deepEqual(rowsInView({ ...box, top: 0 }), { first: 0, end: 15 });
  assert.deepEqual(rowsInView({ ...box, top: 200_000 }), { first: 4995, end: 5015 });
  assert.deepEqual(rowsInView({ ...box, top: 1e9 }), { first: 9985, end: 10_000 });
  assert.deepEqual(rowsInView({ ...box, top: 390_000, count: 3 }), { first: 0, end: 3 });
  assert.deepEqual(rowsInView({ ...box, top: 0, count: 0 }), { first: 0, end: 0 });
  assert.deepEqual(rowsInView({ ...box, top: 0, rowHeight: 0 }), { first: 0, end: 0 });
});

test("a row is brought into view by as little as it takes", () => {
  const box = { top: 100, height: 400, rowHeight: 40 };
  assert.equal(revealing(5, box), 100);
  assert.equal(revealing(0, box), 0);
  assert.equal(revealing(20, box), 440);
});

test("keys lead from row to row and stop at the ends", () => {
  const list = { count: 100, page: 10 };
  assert.deepEqual(
    ["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End"].map((key) => rowAfter(key, 50, list)),
    [51, 49, 60, 40, 0, 99],
  );
  assert.equal(rowAfter("ArrowDown", 99, list), 99);
  assert.equal(rowAfter("ArrowUp", -1, list), 0);
  assert.equal(rowAfter("x", 5, list), null);
  assert.deepEqual(
    ["ArrowDown", "ArrowUp", "PageDown", "PageUp"].map((key) => rowAfter(key, 49.5, list)),
    [50, 49, 59, 40], "from where row 50 was: what came after it is there now",
  );
  assert.deepEqual(["ArrowDown", "ArrowUp"].map((key) => rowAfter(key, -0.5, list)), [0, 0]);
  assert.equal(rowAfter("End", 0, { count: 0, page: 1 }), null);
});
