// The typer, with a clock that the tests move.

import assert from "node:assert/strict";
import { test } from "node:test";

import { SmoothTyper } from "../../../nginx/www/smooth-typer.js";

const FRAME_MS = 16;
const PROMISED_MS = 1000;

class Clock {
  time = 0;
  calm = false;
  callback = null;
  now = () => this.time;
  still = () => this.calm;
  next = (callback) => {
    assert.equal(this.callback, null, "one step at a time");
    this.callback = callback;
    return () => (this.callback = null);
  };

  frame(ms = FRAME_MS) {
    this.time += ms;
    const callback = this.callback;
    this.callback = null;
    callback?.();
  }
}

function typing() {
  const clock = new Clock();
  const steps = []; // { at, text }
  const typer = new SmoothTyper((text) => steps.push({ at: clock.time, text }), { clock });
  return { clock, steps, typer, shown: () => steps.map(({ text }) => text).join("") };
}

test("a burst of 5,000 is typed, fast and in large steps at first, slowly at its end", () => {
  const { clock, steps, typer, shown } = typing();
  typer.feed("患".repeat(5000));
  while (shown().length < 5000) clock.frame();
  assert.ok(clock.time <= PROMISED_MS, `${clock.time} ms`);
  const sizes = steps.map(({ text }) => text.length);
  assert.ok(steps.length > 30, "it is typed and does not jump");
  assert.ok(sizes[2] > 5 * sizes.at(-3), String(sizes));
});

test("nothing is later than a second, at any pace and with frames that are late", () => {
  for (const [gap, size, frame] of [[20, 1, 16], [5, 3, 16], [200, 400, 16], [90, 30, 70], [1, 50, 33]]) {
    const { clock, typer, shown } = typing();
    const due = []; // [when, how much must be shown]
    let fed = 0;
    let feedAt = 0;
    for (let step = 0; step < 400; step += 1) {
      for (; feedAt <= clock.time && feedAt < 3000; feedAt += gap) {
        typer.feed("字".repeat(size));
        fed += size;
        due.push([clock.time + PROMISED_MS, fed]);
      }
      clock.frame(frame);
      while (due.length > 0 && due[0][0] <= clock.time) {
        const [, wanted] = due.shift();
        assert.ok(shown().length >= wanted, `${shown().length} of ${wanted} at ${clock.time}, ${gap} ms`);
      }
    }
    assert.equal(shown().length, fed);
  }
});

test("an engine's pause is covered: few characters are typed slowly", () => {
  const { clock, steps, typer } = typing();
  typer.feed("发热三天，");
  while (steps.map(({ text }) => text).join("").length < 4) clock.frame();
  assert.ok(steps.at(-1).at > 120, "not all in one frame");
  assert.ok(steps.every(({ text }) => text.length === 1));
});

test("what may become longer waits for what follows, but not for ever", () => {
  const { clock, typer, shown } = typing();
  typer.feed("好👨");
  for (let n = 0; n < 20; n += 1) clock.frame();
  assert.equal(shown(), "好");
  typer.feed("‍👩");
  typer.feed("‍👧。");
  while (clock.callback && clock.time < PROMISED_MS) clock.frame();
  assert.equal(shown(), "好👨‍👩‍👧", "a full stop may yet get an accent");
  clock.frame(PROMISED_MS);
  assert.equal(shown(), "好👨‍👩‍👧。");
  assert.equal(clock.callback, null, "and then nothing is left to wait for");
});

test("what an open bracket holds back is given in whole characters", () => {
  const { clock, steps, typer, shown } = typing();
  const family = "👨\u200d👩\u200d👧";
  typer.feed("[患者自述");
  while (clock.time < 780) clock.frame();
  // A token at a time, and the bracket's time is over between two of them.
  for (const part of [...family]) {
    typer.feed(part);
    clock.frame();
  }
  typer.feed("。");
  clock.frame(PROMISED_MS);
  clock.frame(PROMISED_MS);
  assert.equal(shown(), `[患者自述${family}。`);
  assert.ok(steps[0].at < PROMISED_MS);
  assert.ok(
    steps.some(({ text }) => text.includes(family)),
    JSON.stringify(steps),
  );
});

test("a character without an end does not hold up for longer than a second either", () => {
  const { clock, typer, shown } = typing();
  for (let n = 0; n < 200; n += 1) {
    typer.feed(n === 0 ? "e" : "\u0301");
    clock.frame();
    if (clock.time >= PROMISED_MS) assert.ok(shown().length > (clock.time - PROMISED_MS) / FRAME_MS);
  }
});

test("the end shows everything at once and takes nothing more", () => {
  const { clock, steps, typer, shown } = typing();
  typer.feed("患者**主");
  clock.frame();
  typer.feed("诉** [未完");
  typer.finish();
  assert.equal(shown(), "患者**主诉** [未完");
  typer.feed("迟");
  typer.finish();
  clock.frame(5000);
  assert.equal(shown(), "患者**主诉** [未完");
  assert.equal(clock.callback, null);
  assert.ok(steps.length <= 2);
});

test("where nothing shall move, text is there as it comes", () => {
  const { clock, typer, shown } = typing();
  clock.calm = true;
  typer.feed("患者主诉发热");
  assert.equal(shown(), "患者主诉发");
  clock.frame(PROMISED_MS);
  assert.equal(shown(), "患者主诉发热");
});

test("a tab that is hidden meanwhile has its text with the next step", () => {
  const { clock, typer, shown } = typing();
  typer.feed("字".repeat(500));
  clock.frame();
  assert.ok(shown().length < 100);
  clock.calm = true;
  clock.frame(1);
  assert.equal(shown().length, 499);
});
