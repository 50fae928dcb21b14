// Where text may be cut: with the browser's segmenter, and with the rule for those without.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Stops } from "../../../nginx/www/stops.js";

const CLUSTERS = [
  "👨‍👩‍👧‍👦", "👩🏽‍⚕️", "🇨🇳", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "1️⃣", "❤️‍🔥", "e\u0301", "a\u0323\u0302", "각", "\u1112\u1161\u11ab", "ก็", "\r\n", "患",
];
const MARKERS = [
  "**", "***", "~~", "__", "``", "[链接](https://a.example/b_(c))", "![图](x.png)", "[a][b]", "\\*", "✓",
];

// A generator of numbers that is the same in each run.
function* numbers(seed) {
  for (;;) {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    yield seed;
  }
}

for (const [name, segmenter] of [["Intl.Segmenter", Intl.Segmenter], ["the pattern", null]]) {
  const pieces = (...texts) => {
    const stops = new Stops(segmenter);
    return [...texts.flatMap((text) => stops.push(text)), ...stops.close()];
  };

  test(`${name}: no character is ever cut, wherever its text was`, () => {
    const random = numbers(7);
    for (let round = 0; round < 200; round += 1) {
      const clusters = Array.from({ length: 12 }, () => CLUSTERS[random.next().value % CLUSTERS.length]);
      const text = clusters.join("x");
      const cuts = new Set();
      let end = 0;
      for (const cluster of clusters) {
        for (const part of [cluster, "x"]) cuts.add((end += part.length));
      }
      const units = text.split(""); // cuts surrogates too
      const stops = new Stops(segmenter);
      let shown = 0;
      for (let at = 0; at < units.length; ) {
        const size = 1 + (random.next().value % 4);
        for (const piece of stops.push(units.slice(at, at + size).join(""))) {
          shown += piece.length;
          assert.ok(cuts.has(shown), JSON.stringify(text.slice(0, shown)));
        }
        at += size;
      }
      assert.equal(shown + stops.open.length, text.length);
    }
  });

  for (const marker of MARKERS) {
    test(`${name}: ${marker} is one piece, however it comes`, () => {
      const text = `药${marker}名 `;
      const expected = ["药", marker, "名", " "];
      assert.deepEqual(pieces(text), expected);
      assert.deepEqual(pieces(...text), expected);
    });
  }

  test(`${name}: a fence comes with its language and line, and within it nothing is a marker`, () => {
    const text = "\n```json\n[a\n*b\n```\n**c";
    const expected = ["\n", "```json\n", "[", "a", "\n", "*", "b", "\n", "```", "\n", "**", "c"];
    assert.deepEqual(pieces(text), expected);
    assert.deepEqual(pieces(...text), expected);
  });

  test(`${name}: what begins a line as a marker comes with its space`, () => {
    const text = "## 主诉\n- 发热\n12. 咳\n> x";
    assert.deepEqual(
      pieces(...text).filter((piece) => piece.length > 1),
      ["## ", "- ", "12. ", "> "],
    );
  });

  test(`${name}: a bracket that is no link holds nothing up for long`, () => {
    const stops = new Stops(segmenter);
    assert.deepEqual(stops.push("见[1]和"), ["见", "[", "1", "]"]);
    const long = new Stops(segmenter);
    assert.equal(long.push(`[${"字".repeat(400)}`).join("").length, 400);
    assert.equal(long.open, "字");
  });

  test(`${name}: close gives what is open, whole characters all the same`, () => {
    const stops = new Stops(segmenter);
    assert.deepEqual(stops.push("[👨‍👩‍👧e\u0301"), []);
    assert.deepEqual(stops.close(), ["[", "👨‍👩‍👧", "e\u0301"]);
    assert.equal(stops.open, "");
  });
}

test("a long text takes time in proportion", () => {
  const began = performance.now();
  new Stops().push("患者 **主诉** 发热三天，[见](a)".repeat(10_000));
  assert.ok(performance.now() - began < 5_000);
});
