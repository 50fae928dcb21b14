// Server-sent events, however they are cut.

import assert from "node:assert/strict";
import { test } from "node:test";

import { SseParser } from "../../../nginx/www/sse.js";

function parsed(...chunks) {
  const seen = [];
  const parser = new SseParser({
    onEvent: ({ type, data, lastEventId }) => seen.push([type, data, lastEventId]),
    onComment: (text) => seen.push(["comment", text]),
    onRetry: (ms) => seen.push(["retry", ms]),
  });
  for (const chunk of chunks) {
    parser.push(typeof chunk === "string" ? new TextEncoder().encode(chunk) : chunk);
  }
  return seen;
}

for (const [name, end] of [["LF", "\n"], ["CR", "\r"], ["CRLF", "\r\n"]]) {
  test(`lines end with ${name}`, () => {
    const text = ["data: a", "", ": ping", "", "data: b", "data: c", "", ""].join(end);
    const expected = [["message", "a", ""], ["comment", "ping"], ["message", "b\nc", ""]];
    assert.deepEqual(parsed(text), expected);
    assert.deepEqual(parsed(...text), expected, "one character at a time");
  });
}

test("a character is put together from its bytes", () => {
  const bytes = new TextEncoder().encode("data: 患者👨‍👩‍👧\n\n");
  const single = Array.from(bytes, (byte) => Uint8Array.of(byte));
  assert.deepEqual(parsed(...single), [["message", "患者👨‍👩‍👧", ""]]);
});

test("a CRLF cut in two is one end of line, and is not waited for", () => {
  assert.deepEqual(parsed("data: a\r\n\r"), [["message", "a", ""]]);
  assert.deepEqual(parsed("data: a\r", "\ndata: b\r", "\n\r", "\n"), [["message", "a\nb", ""]]);
  assert.deepEqual(parsed("data: a\r", "", "\n\r\n"), [["message", "a", ""]]);
});

test("a byte order mark at the beginning is no part of the first line", () => {
  assert.deepEqual(parsed("\ufeffdata: a\n\n"), [["message", "a", ""]]);
  assert.deepEqual(parsed(Uint8Array.of(0xef), Uint8Array.of(0xbb, 0xbf), "data: a\n\n"), [
    ["message", "a", ""],
  ]);
});

test("event, id and retry are read; an unknown field, and one without a colon, too", () => {
  assert.deepEqual(
    parsed("event: error\nid: 7\nretry: 250\ndata: x\nfoo: y\n\ndata\n\nretry: 1s\nid: a\0b\n\n"),
    [["retry", 250], ["error", "x", "7"], ["message", "", "7"]],
  );
});

test("an empty line sets the last id, with data or without", () => {
  const ids = [];
  const parser = new SseParser({ onEvent: ({ lastEventId }) => ids.push(lastEventId) });
  for (const text of ["retry: 2000\nid: 5\n", "\n", ": ping\nid: 8\n\nid: 9\ndata: a\n", "\nid: 10\n"]) {
    parser.push(new TextEncoder().encode(text));
    ids.push(parser.lastEventId);
  }
  assert.deepEqual(ids, ["", "5", "8", "9", "9"]);
});

test("one space after the colon is taken away, and no more", () => {
  assert.deepEqual(parsed("data:a\ndata:  b\n\n"), [["message", "a\n b", ""]]);
});

test("an event without data is none, and its type is forgotten", () => {
  assert.deepEqual(parsed("event: error\n\ndata: a\n\n"), [["message", "a", ""]]);
});

test("what is unfinished at the end is discarded", () => {
  assert.deepEqual(parsed("data: a\n\ndata: [DONE]\n"), [["message", "a", ""]]);
});
