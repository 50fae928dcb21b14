// What the dashboard says of numbers, of what a change does, and of what needs somebody.

import assert from "node:assert/strict";
import { test } from "node:test";

import { attention } from "../../../nginx/www/ui/attention.js";
import { ofLimits, ofState } from "../../../nginx/www/ui/consequences.js";
import { Format, shortId } from "../../../nginx/www/ui/format.js";
import { ENDED, REFUSED, counted, lastMinute, minutesOf, sums } from "../../../nginx/www/ui/minutes.js";

const backend = (more = {}) => ({
  name: "gpu-0", state: "active", streams: 20, tokens: 60_000, max_streams: 25, max_tokens: 80_000, draining: 0, ...more,
});
const limits = (max_streams, max_tokens = 80_000) => ({ max_streams, max_tokens });

test("numbers, sizes and times are as the language writes them", () => {
  const [en, zh] = [new Format("en", "UTC"), new Format("zh", "UTC")];
  assert.equal(en.number(1234567), "1,234,567");
  assert.deepEqual([0, 59.9, 60, 3725, 90_000].map((s) => en.duration(s)), ["0 s", "59 s", "1 min 00 s", "1 h 02 min", "1 d 01 h"]);
  assert.deepEqual([42, 3725].map((s) => zh.duration(s)), ["42 秒", "1 时 02 分"]);
  assert.deepEqual([0, 1023, 1536, 3 << 20].map((n) => en.bytes(n)), ["0 B", "1,023 B", "1.5 KiB", "3 MiB"]);
  assert.equal(en.bytes(8 * 2 ** 30), "8 GiB");
  assert.equal(en.percent(0.915), "92%");
  assert.equal(en.time(3661), "01:01:01");
  assert.equal(zh.minute(3661), "01:01");
  for (const none of [null, undefined]) assert.deepEqual([en.number(none), en.bytes(none), en.duration(none)], ["–", "–", "–"]);
  assert.equal(en.percent(NaN), "–");
});

test("an id is short where it is long", () => {
  assert.equal(shortId("0123456789abcdef"), "01234567");
  assert.equal(shortId("abc"), "abc");
});

for (const [name, after, told] of [
  ["below what runs", limits(10), ["streams.over", 20, "gpu-0", 10]],
  ["to what runs", limits(20), ["streams.full", 20, "gpu-0", 20]],
  ["lower", limits(22), ["streams.lowered", 20, "gpu-0", 22, 2]],
  ["higher", limits(30), ["streams.raised", 20, "gpu-0", 30, 10]],
  ["tokens below what is held", limits(25, 50_000), ["tokens.over", 60_000, "gpu-0", 50_000]],
]) {
  test(`a limit that goes ${name}: what will happen`, () => {
    assert.deepEqual(ofLimits(backend(), after)[0], told);
  });
}

test("a limit that is still over what runs when raised frees nothing", () => {
  assert.deepEqual(ofLimits(backend({ max_streams: 5 }), limits(10))[0], ["streams.over", 20, "gpu-0", 10]);
});

test("a change says whether the file says the same", () => {
  assert.deepEqual(ofLimits(backend(), limits(25)), [["limits.same"]]);
  assert.deepEqual(ofLimits(backend(), limits(10)).at(-1), ["limits.kept", 25, 80_000]);
  const changed = backend({ max_streams: 10, configured: { max_streams: 25, max_tokens: 80_000, state: "active" } });
  assert.deepEqual(ofLimits(changed, limits(25)).at(-1), ["limits.asFile"]);
});

test("a drain says what runs on and who is left", () => {
  assert.deepEqual(ofState(backend(), "draining", 2), [["state.draining", 20, "gpu-0"], ["state.others", 2], ["state.kept"]]);
  assert.deepEqual(ofState(backend({ streams: 0 }), "disabled", 0).slice(0, 2), [["state.empty", "gpu-0"], ["state.last", "gpu-0"]]);
  assert.deepEqual(ofState(backend({ state: "draining" }), "disabled", 0).map(([name]) => name), ["state.disabled", "state.kept"]);
  assert.deepEqual(ofState(backend({ state: "draining" }), "active", 0), [["state.opened", "gpu-0", 5]]);
  assert.deepEqual(ofState(backend({ state: "draining", max_streams: 10 }), "active", 0), [["state.openedFull", "gpu-0", 0]]);
});

test("the urgent comes before what is only worth knowing", () => {
  const store = {
    fault: { code: "journal", detail: "disk full" },
    nodes: [
      { name: "n0", silent: true, agent: null, memory: null },
      { name: "n1", silent: true, agent: {}, memory: null },
      { name: "n2", silent: false, agent: {}, memory: { state: "full", used_bytes: 93, limit_bytes: 100, leak_suspected: true } },
    ],
    pools: [
      { name: "p", backends: [backend({ max_streams: 10 }), backend({ name: "gpu-1", state: "draining", streams: 3 })] },
      { name: "q", backends: [backend({ state: "disabled", unreachable: true })] },
      { name: "r", backends: [backend({ streams: 0, unreachable: true })] },
    ],
    news: { alarms: new Map() },
    leases: new Map([["a", { state: "active", quietSince: 0 }], ["b", { state: "active", quietSince: null }]]),
  };
  const told = attention(store, 300_000).map(({ level, name }) => `${level} ${name.replace("attention.", "")}`);
  assert.deepEqual(told, [
    "urgent fault", "urgent silent", "urgent memoryFull", "urgent leak", "urgent closed", "urgent unreachable",
    "note noAgent", "note saturated", "note overStreams", "note draining", "note quiet",
  ]);
  const calm = { fault: null, nodes: [], pools: [{ name: "p", backends: [backend()] }], news: { alarms: new Map() }, leases: new Map() };
  assert.deepEqual(attention(calm, 0), []);
});

test("a pool is full where no open backend has room for the smallest request, alarm or none", () => {
  const config = { effective: { scenes: { expected_output: { Record_Gen: 6000, QA: 1000 } } } };
  const told = (backends, more = { config }) =>
    attention({ fault: null, nodes: [], news: { alarms: new Map() }, leases: new Map(), pools: [{ name: "p", backends }], ...more }, 0)
      .map(({ name }) => name.replace("attention.", ""));
  const byTokens = backend({ tokens: 79_001 });
  assert.deepEqual(told([byTokens]), ["saturated"]);
  assert.deepEqual(told([backend({ tokens: 79_000 })]), []);
  assert.deepEqual(told([byTokens, backend({ streams: 25 })]), ["saturated"]);
  assert.deepEqual(told([byTokens, backend()]), []);
  assert.deepEqual(told([byTokens, backend({ unreachable: true })]), ["unreachable", "saturated"]);
  assert.deepEqual(told([byTokens], {}), [], "where it is not known how small a request can be");
  assert.deepEqual(told([backend({ tokens: 80_000 })], {}), ["saturated"]);
});

test("minutes stand where they belong, with holes where nobody counted", () => {
  const point = (minute, ended = {}) => ({ at: minute * 60, granted: 1, ended, refused: {}, pools: {} });
  const places = minutesOf([point(100), point(158), point(160)]);
  assert.equal(places.length, 60);
  assert.deepEqual(places.map((place) => place && place.at / 60).filter(Boolean), [158, 160]);
  assert.deepEqual([places[57]?.at, places[58], places[59]?.at], [158 * 60, null, 160 * 60]);
  assert.deepEqual(minutesOf([]), Array(60).fill(null));
});

test("ends and refusals are counted by kind, and what is new counts as a fault", () => {
  const point = {
    at: 60, granted: 9, pools: {},
    ended: { completed: 5, client_abort: 2, killed: 1, lost: 1, invented: 1 },
    refused: { streams_exhausted: 3, no_backend: 2 },
  };
  assert.deepEqual(counted([point], ENDED).at(-1).counts, { completed: 5, left: 3, fault: 2 });
  assert.deepEqual(counted([point], REFUSED).at(-1).counts, { full: 3, refusedFault: 2 });
  assert.deepEqual(sums([point, point], REFUSED), [["streams_exhausted", 6], ["no_backend", 4]]);
  assert.equal(lastMinute([point, { ...point, granted: 0 }], "granted"), 9);
  assert.equal(lastMinute([point], "refused"), 5);
  assert.equal(lastMinute([], "granted"), null);
  const at = (second, granted) => ({ ...point, at: second, granted });
  assert.equal(lastMinute([at(0, 7), at(60, 1)], "granted"), 7);
  assert.equal(lastMinute([at(0, 7), at(600, 1)], "granted"), 1, "nobody counted in between");
});
