// The stream of events, that is opened again and again.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Api, ApiError } from "../../../nginx/www/ui/api.js";
import { Feed } from "../../../nginx/www/ui/feed.js";

const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

// A feed whose streams the test writes, and whose timers the test lets go off.
function following(refusal = null) {
  const opened = [];
  const seen = [];
  const waits = [];
  const open = async (headers, signal) => {
    if (refusal) throw refusal;
    let controller;
    const body = new ReadableStream({ start: (made) => (controller = made) });
    signal.addEventListener("abort", () => controller.error(new DOMException("", "AbortError")));
    opened.push({
      headers, signal,
      write: (text) => controller.enqueue(new TextEncoder().encode(text)),
      close: () => controller.close(),
    });
    return body;
  };
  const timers = {
    after(ms, callback) {
      const wait = { ms, callback };
      waits.push(wait);
      return () => waits.includes(wait) && waits.splice(waits.indexOf(wait), 1);
    },
  };
  const on = {
    opened: () => seen.push("opened"),
    event: ({ id, kind, data }) => seen.push([id, kind, data]),
    lost: (error, ms) => {
      seen.push(["lost", error?.code ?? null, ms]);
      return error?.status !== 401;
    },
  };
  return { feed: new Feed(open, on, timers), opened, seen, waits };
}

test("events come with their ids, and a stream that ends is resumed after the last", async () => {
  const { feed, opened, seen, waits } = following();
  feed.start();
  await settled();
  opened[0].write('retry: 500\n\nid: 7\nevent: granted\ndata: {"id":"a"}\n\n: ping\n\nid: 9\n');
  await settled();
  opened[0].close();
  await settled();
  assert.deepEqual(seen, ["opened", [7, "granted", { id: "a" }], ["lost", null, 500]]);
  waits.at(-1).callback();
  await settled();
  assert.equal(opened[0].headers["Last-Event-ID"], undefined);
  assert.equal(opened[1].headers["Last-Event-ID"], "7");
  feed.stop();
});

test("a stream on which nothing happened is resumed from where it stood", async () => {
  const { feed, opened, waits } = following();
  feed.start();
  await settled();
  opened[0].write("retry: 500\nid: 70\n\n");
  await settled();
  opened[0].close();
  await settled();
  waits.at(-1).callback();
  await settled();
  opened[1].write("retry: 500\nid: 70\n\n: ping\nid: 75\n\n");
  await settled();
  opened[1].close();
  await settled();
  waits.at(-1).callback();
  await settled();
  assert.deepEqual(opened.map(({ headers }) => headers["Last-Event-ID"]), [undefined, "70", "75"]);
  feed.stop();
});

test("one that is silent for too long is given up", async () => {
  const { feed, opened, seen, waits } = following();
  feed.start();
  await settled();
  assert.equal(waits.at(-1).ms, 25_000);
  waits.pop().callback();
  await settled();
  assert.equal(opened[0].signal.aborted, true);
  assert.deepEqual(seen.at(-1), ["lost", null, 2000]);
  feed.stop();
});

test("waits grow while there is nobody, to a quarter of a minute", async () => {
  const { feed, seen, waits } = following(new ApiError(0, "unreachable"));
  feed.start();
  for (let n = 0; n < 5; n += 1) {
    await settled();
    waits.pop().callback();
  }
  await settled();
  assert.deepEqual(seen.map(([, , ms]) => ms), [2000, 4000, 8000, 15_000, 15_000, 15_000]);
  feed.stop();
});

test("one whose token is refused is not tried again", async () => {
  const { feed, seen, waits } = following(new ApiError(401, "unauthorized"));
  feed.start();
  await settled();
  assert.deepEqual(seen, [["lost", "unauthorized", 2000]]);
  assert.equal(waits.length, 0);
});

test("what else fails ends the stream as well, and says why", async () => {
  const { feed, seen } = following();
  feed.start();
  await settled();
  feed.fail(new ApiError(503, "journal"));
  await settled();
  assert.deepEqual(seen.at(-1), ["lost", "journal", 2000]);
  feed.stop();
});

test("an event that cannot be read is passed over, and gap has no id", async () => {
  const { feed, opened, seen } = following();
  feed.start();
  await settled();
  opened[0].write('id: 3\nevent: granted\ndata: {"id":\n\nevent: gap\ndata: {"missed":4,"oldest":9}\n\n');
  await settled();
  assert.deepEqual(seen.slice(1), [[null, "gap", { missed: 4, oldest: 9 }]]);
  feed.stop();
});

test("one that was stopped says nothing more", async () => {
  const { feed, seen } = following();
  feed.start();
  await settled();
  feed.stop();
  await settled();
  assert.deepEqual(seen, ["opened"]);
});

test("a token goes in a header and never in an address", async () => {
  const asked = [];
  const answer = (body, init) => async (url, options) => {
    asked.push([String(url), options]);
    return new Response(body, init);
  };
  const api = new Api("http://weir.test/", { fetch: answer('{"pools":[]}', { headers: { ETag: '"7"' } }) });
  api.token = "secret";
  assert.deepEqual(await api.ask("PATCH", "v1/pools/p", { body: { state: "active" }, etag: '"6"' }), {
    status: 200, data: { pools: [] }, etag: '"7"',
  });
  const [url, options] = asked[0];
  assert.equal(url, "http://weir.test/v1/pools/p");
  assert.equal(options.headers.Authorization, "Bearer secret");
  assert.equal(options.headers["If-Match"], '"6"');
});

test("an error has the service's code and words; no answer is none of them", async () => {
  const failing = (fetch) => new Api("http://weir.test/", { fetch }).read("v1/pools").catch((error) => error);
  const problem = JSON.stringify({ code: "forbidden", detail: "ask somebody" });
  const refused = await failing(async () => new Response(problem, { status: 403, headers: { "Retry-After": "3" } }));
  assert.deepEqual([refused.status, refused.code, refused.detail, refused.retryS], [403, "forbidden", "ask somebody", 3]);
  const page = await failing(async () => new Response("<html>", { status: 502 }));
  assert.deepEqual([page.status, page.code], [502, "502"]);
  const gone = await failing(async () => Promise.reject(new TypeError("Failed to fetch")));
  assert.deepEqual([gone.status, gone.code], [0, "unreachable"]);
});
