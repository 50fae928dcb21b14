// What a screen reader is told: numbers as they were written.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Announcer, plain } from "../../../nginx/www/announcer.js";

// As much of an element as the announcer needs.
function region() {
  const lines = [];
  const ownerDocument = { createElement: () => ({ textContent: "", remove() {} }) };
  return {
    ownerDocument,
    append: (line) => lines.push(line),
    replaceChildren: () => lines.splice(0),
    get childElementCount() {
      return lines.length;
    },
    get said() {
      return lines.map((line) => line.textContent);
    },
  };
}

for (const kept of [
  "体温36~37℃，服药3~5天，WBC 5*10^9/L。",
  "36 ~ 37 ℃，约 ~5 天，3~~5 次",
  "5 * 10 = 50，5*10**9/L，2*3*4，2***3",
  "3* 2 片，#1 床，C# 大调",
  "a*b，片*天",
]) {
  test(`nothing is taken out of ${kept}`, () => assert.equal(plain(kept), kept));
}

for (const [written, told] of [
  ["**肺炎**，体温**37~38**度", "肺炎，体温37~38度"],
  ["**5*10^9/L**", "5*10^9/L"],
  ["***重要***", "重要"],
  ["*斜体*，见 *note* 。", "斜体，见 note 。"],
  ["服用 `0.5g*3` 片", "服用 0.5g*3 片"],
  ["```json", "json"],
  ["~~停用~~ 改为 3~5 天", "停用 改为 3~5 天"],
  ["# 诊断\n### 用药", "诊断\n用药"],
  ["* 第一\n  * 第二", "第一\n第二"],
  ["***", ""],
]) {
  test(`markers are taken out of ${JSON.stringify(written)}`, () => assert.equal(plain(written), told));
}

test("a pair of markers may stand in two sentences", () => {
  const heard = region();
  const announcer = new Announcer(heard);
  for (const sign of "**诊断：肺炎。用药3~5天**。再看。") announcer.feed(sign);
  announcer.finish("回答完整");
  assert.deepEqual(heard.said, ["诊断：肺炎。", "用药3~5天。", "再看。", "回答完整"]);
});

test("a long text without an end of sentence is not cut within a number", () => {
  const heard = region();
  const announcer = new Announcer(heard);
  const text = "体温36.8℃，".repeat(80);
  for (const sign of text) announcer.feed(sign);
  announcer.finish("回答完整");
  assert.ok(heard.said.length > 2);
  assert.equal(heard.said.slice(0, -1).join(""), text);
  for (const line of heard.said.slice(0, -1)) assert.match(line, /，$/);
});
