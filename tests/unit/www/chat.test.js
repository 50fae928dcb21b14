// What becomes of a question: only a whole answer is called one.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ask } from "../../../nginx/www/chat.js";

const delta = (content, finish = null) =>
  `data: ${JSON.stringify({ choices: [{ delta: { content }, finish_reason: finish }] })}\n\n`;
const DONE = "data: [DONE]\n\n";
const ERROR = '{"error":{"message":"CUDA out of memory","code":500}}';
const EVENTS = { "Content-Type": "text/event-stream; charset=utf-8" };
const JSON_KIND = { "Content-Type": "application/json" };

function body(parts, breaks) {
  return new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
      if (breaks) controller.error(new TypeError("network error"));
      else controller.close();
    },
  });
}

async function asked(answer, signal) {
  const seen = { text: "", beats: 0, thoughts: 0 };
  const outcome = await ask("/v1/chat/completions", {
    body: {},
    signal,
    fetch: async () => answer(),
    on: {
      text: (more) => (seen.text += more),
      beat: () => (seen.beats += 1),
      thinking: () => (seen.thoughts += 1),
    },
  });
  return { ...outcome, ...seen };
}

const streamed = (parts, { breaks = false } = {}) =>
  asked(() => new Response(body(parts, breaks), { headers: EVENTS }));

test("a whole answer has its terminator", async () => {
  const thought = `data: ${JSON.stringify({ choices: [{ delta: { reasoning_content: "…" } }] })}\n\n`;
  const got = await streamed([": ping\n\n", thought, delta("发热"), delta("三天", "stop"), DONE]);
  assert.deepEqual(got, { kind: "whole", text: "发热三天", beats: 1, thoughts: 1 });
});

test("an event without content is no hole in the text", async () => {
  const got = await streamed(["data:\n\n", delta("发热"), "data: \n\n", delta("", "stop"), DONE]);
  assert.equal(got.kind, "whole");
  assert.equal(got.text, "发热");
});

for (const [name, parts, code] of [
  ["no terminator", [delta("发"), delta("", "stop")], "no_end"],
  ["half a terminator", [delta("发"), "data: [DONE]\n"], "no_end"],
  ["an error in the stream", [delta("发"), `data: ${ERROR}\n\n`], "500"],
  ["an error and then a terminator", [delta("发"), `data: ${ERROR}\n\n`, DONE], "500"],
  ["an error as an event", [delta("发"), `event: error\ndata: ${ERROR}\n\n`, DONE], "500"],
  ["an error that is no JSON", [delta("发"), "event: error\ndata: boom\n\n", DONE], "damaged"],
  ["a frame that cannot be read", [delta("发"), 'data: {"choices":[{"del\n\n', DONE], "damaged"],
  ["a length limit", [delta("发", "length"), DONE], "length"],
]) {
  test(`${name}: incomplete`, async () => {
    const got = await streamed(parts);
    assert.equal(got.kind, "incomplete");
    assert.equal(got.code, code);
    assert.equal(got.text, "发");
  });
}

test("a connection that breaks: incomplete; after the terminator it does not matter", async () => {
  assert.equal((await streamed([], { breaks: true })).code, "no_end");
  const late = async () => {
    let pulls = 0;
    const stream = new ReadableStream({
      pull(controller) {
        if (pulls++ === 0) controller.enqueue(new TextEncoder().encode(delta("发") + DONE));
        else controller.error(new TypeError("network error"));
      },
    });
    return new Response(stream, { headers: EVENTS });
  };
  assert.equal((await asked(late)).kind, "whole");
});

test("text after the terminator or an error is not shown", async () => {
  assert.equal((await streamed([delta("发"), DONE, delta("x")])).text, "发");
  assert.equal((await streamed([delta("发"), `data: ${ERROR}\n\n`, delta("x")])).text, "发");
});

const REFUSAL = {
  error: {
    message: "忙 busy",
    type: "overloaded",
    code: "streams_exhausted",
    param: null,
    weir: { reason: "streams_exhausted", retry_after_ms: 1800 },
  },
};

for (const [name, headers, text] of [
  ["a frame", EVENTS, `event: error\ndata: ${JSON.stringify(REFUSAL)}\n\n`],
  ["JSON", JSON_KIND, JSON.stringify(REFUSAL)],
]) {
  test(`a refusal as ${name} says why and when to come back`, async () => {
    const init = { status: 429, headers: { ...headers, "Retry-After": "3" } };
    const got = await asked(() => new Response(text, init));
    assert.deepEqual(
      [got.kind, got.code, got.message, got.retryS],
      ["refused", "streams_exhausted", "忙 busy", 3],
    );
  });
}

test("without a header its own word counts, and without that five seconds; a minute is the most", async () => {
  const refused = (text, headers = {}) =>
    asked(() => new Response(text, { status: 503, headers: { ...JSON_KIND, ...headers } }));
  assert.equal((await refused(JSON.stringify(REFUSAL))).retryS, 2);
  assert.equal((await refused("<html>")).retryS, 5);
  assert.equal((await refused("<html>")).code, "503");
  assert.equal((await refused("{}", { "Retry-After": "86400" })).retryS, 60);
});

test("a bad request is not asked again", async () => {
  const error = { error: { message: "too large", code: "request_too_large" } };
  const got = await asked(() => new Response(JSON.stringify(error), { status: 413, headers: JSON_KIND }));
  assert.deepEqual([got.kind, got.code, got.retryS], ["refused", "request_too_large", null]);
});

test("a server that is not there is a refusal; one that does not stream no whole answer", async () => {
  const gone = await asked(() => Promise.reject(new TypeError("Failed to fetch")));
  assert.deepEqual([gone.kind, gone.code, gone.retryS], ["refused", "unreachable", 5]);
  const plain = await asked(() => new Response("{}", { headers: JSON_KIND }));
  assert.deepEqual([plain.kind, plain.code], ["incomplete", "not_a_stream"]);
});

test("a stop before or during the answer is a stop", async () => {
  const controller = new AbortController();
  const stream = new ReadableStream({
    pull(c) {
      controller.abort();
      c.error(new DOMException("stopped", "AbortError"));
    },
  });
  const got = await asked(() => new Response(stream, { headers: EVENTS }), controller.signal);
  assert.equal(got.kind, "stopped");
  const before = await asked(() => Promise.reject(new DOMException("", "AbortError")), controller.signal);
  assert.equal(before.kind, "stopped");
});
